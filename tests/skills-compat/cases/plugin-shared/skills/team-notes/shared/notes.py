"""Reads and writes notes, one JSON object per line. As a program: notes.py FILE TAG TEXT adds a note."""

import json
import sys
from pathlib import Path

TAGS = Path(__file__).with_name("tags.txt").read_text().split()


def add_note(file, tag, text):
    if tag not in TAGS:
        sys.exit(f"unknown tag {tag!r}: use one of {', '.join(TAGS)}")
    with open(file, "a") as notes:
        notes.write(json.dumps({"tag": tag, "text": text}) + "\n")


def read_notes(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


if __name__ == "__main__":
    add_note(*sys.argv[1:])
    print(f"{len(read_notes(sys.argv[1]))} notes")
