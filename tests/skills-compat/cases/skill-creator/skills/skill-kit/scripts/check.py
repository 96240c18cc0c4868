"""Checks the SKILL.md of a skill."""

import re
import sys
from pathlib import Path

import yaml

KNOWN = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}


def find_faults(folder):
    try:
        text = (folder / "SKILL.md").read_text()
    except FileNotFoundError:
        return ["SKILL.md is missing"]
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    if not match:
        return ["SKILL.md does not begin with front matter"]
    try:
        front = yaml.safe_load(match.group(1))
    except yaml.YAMLError as error:
        return [f"the front matter is not YAML: {error.problem}"]
    faults = [f"unknown key {key}" for key in front if key not in KNOWN]
    name, description = str(front.get("name", "")), str(front.get("description", ""))
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        faults.append(f"bad name {name!r}")
    elif name != folder.resolve().name:
        faults.append(f"the folder is not called {name}")
    if not description or "TODO" in description:
        faults.append("the description is not written")
    return faults


if __name__ == "__main__":
    found = find_faults(Path(sys.argv[1]))
    print("\n".join(found) or "the skill is good")
    sys.exit(1 if found else 0)
