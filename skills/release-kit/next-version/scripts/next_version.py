#!/usr/bin/env python3
"""Works out the next semantic version. See ../SKILL.md."""

import argparse
import re
import sys

VERSION = re.compile(r"v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
CHANGE = re.compile(r"(?P<kind>\w+)(\([^)]*\))?(?P<breaking>!)?:")


def weight(line: str) -> int:
    """2 for a breaking change, 1 for a feature, 0 for anything else."""
    change = CHANGE.match(line)
    if "BREAKING CHANGE" in line or (change and change["breaking"]):
        return 2
    return 1 if change and change["kind"] == "feat" else 0


def next_version(major: int, minor: int, patch: int, largest: int) -> str:
    if major == 0:
        largest = min(largest, 1)
    if largest == 2:
        return f"{major + 1}.0.0"
    return f"{major}.{minor + 1}.0" if largest else f"{major}.{minor}.{patch + 1}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Works out the next version; changes are read from stdin.")
    parser.add_argument("current", metavar="CURRENT")
    args = parser.parse_args()
    current = VERSION.fullmatch(args.current)
    if not current:
        parser.error(f"{args.current!r} is no version such as 1.4.2")
    lines = [line.strip() for line in sys.stdin if line.strip()]
    if not lines:
        print("next_version: no change was given on standard input", file=sys.stderr)
        sys.exit(3)
    decided = max(lines, key=weight)
    print(f"decided by: {decided}", file=sys.stderr)
    print(next_version(*map(int, current.groups()), weight(decided)))


if __name__ == "__main__":
    main()
