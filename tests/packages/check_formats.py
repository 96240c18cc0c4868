"""Checks an SBOM against the schema of CycloneDX 1.6, and a Nomad job against the grammar of HCL.

Usage: check_formats.py SBOM JOB
"""

import json
import sys

import hcl2
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main():
    sbom, job = sys.argv[1:]
    with open(sbom, encoding="utf-8") as file:
        text = file.read()
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert fault is None, fault
    names = {component["name"]: component for component in json.loads(text)["components"]}
    # A crate of each program, and crates that only build others.
    for name in ("skilld", "skillctl", "skilld-guest", "bollard", "rmcp", "prost"):
        assert name in names, name
    for name in ("protox", "clap_derive", "proptest"):
        assert name not in names, name
    assert "hashes" in names["bollard"]
    assert "licenses" in names["bollard"]
    with open(job, encoding="utf-8") as file:
        assert hcl2.load(file)["job"]


main()
