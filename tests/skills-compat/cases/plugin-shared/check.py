"""Checks the report of both skills' notes."""

import sys
from pathlib import Path

lines = [line for line in Path(sys.argv[1], "out/notes.md").read_text().splitlines() if line]
wanted = ["# Notes of the team", "## decision (1)", "- Ship on Friday", "## question (0)", "## task (1)"]
if lines != [*wanted, "- Order the sensors"]:
    sys.exit(f"out/notes.md has other lines: {lines}")
print("ok: the notes that one skill added are in the report of the other")
