"""Prints the notes of a file, ordered by tag."""

import sys
from pathlib import Path

SKILL = Path(__file__).parent.parent
sys.path.append(str(SKILL / "../../shared"))

from notes import TAGS, read_notes

print((SKILL / "assets/heading.md").read_text())
for tag in TAGS:
    texts = [note["text"] for note in read_notes(sys.argv[1]) if note["tag"] == tag]
    print(f"## {tag} ({len(texts)})\n")
    print("".join(f"- {text}\n" for text in texts))
