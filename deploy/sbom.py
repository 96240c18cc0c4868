"""Prints the SBOM of a release: CycloneDX 1.6 with every crate that is linked into one of the programs.

Usage: sbom.py VERSION, in the repository. Cargo says which crates the programs link on this host; Cargo.lock has their
checksums. Build scripts, procedural macros and tests are no part of a program and are left out. The same lock file
gives the same bytes.
"""

import datetime
import json
import os
import subprocess
import sys
import tomllib

PROGRAMS = ("skilld", "skillctl", "skilld-guest")


def read_metadata():
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = next(line.removeprefix("host: ") for line in host.splitlines() if line.startswith("host: "))
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def find_linked(metadata):
    """Returns the ids of the programs and of all that they link, each with its direct dependencies."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}

    def is_macro(identifier):
        return any("proc-macro" in target["kind"] for target in packages[identifier]["targets"])

    linked = {}
    pending = [identifier for identifier in metadata["workspace_members"] if packages[identifier]["name"] in PROGRAMS]
    while pending:
        identifier = pending.pop()
        if identifier in linked:
            continue
        normal = [
            dependency["pkg"]
            for dependency in nodes[identifier]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]) and not is_macro(dependency["pkg"])
        ]
        linked[identifier] = normal
        pending.extend(normal)
    return packages, linked


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def make_component(package, checksums):
    component = {
        "type": "application" if package["name"] in PROGRAMS else "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if checksum := checksums.get((package["name"], package["version"])):
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["license"]:
        # Some crates still separate alternatives by a slash, as Cargo once wanted it.
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return component


def main():
    version = sys.argv[1]
    packages, linked = find_linked(read_metadata())
    with open("Cargo.lock", "rb") as lock:
        entries = tomllib.load(lock)["package"]
    checksums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in entries}
    ordered = sorted(linked, key=lambda identifier: reference(packages[identifier]))
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    release = {"type": "application", "bom-ref": "release", "name": "skilld-release", "version": version}
    programs = [reference(packages[identifier]) for identifier in ordered if packages[identifier]["name"] in PROGRAMS]
    dependencies = [{"ref": "release", "dependsOn": programs}] + [
        {
            "ref": reference(packages[identifier]),
            "dependsOn": sorted({reference(packages[dependency]) for dependency in linked[identifier]}),
        }
        for identifier in ordered
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": release},
        "components": [make_component(packages[identifier], checksums) for identifier in ordered],
        "dependencies": dependencies,
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main()
