"""Checks the note."""

import sys
from pathlib import Path

note = Path(sys.argv[1], "out/note.txt").read_text()
if note != "Hallo, Ada!\n\nYour desk is in room 12.\n":
    sys.exit(f"out/note.txt has other text: {note!r}")
print("ok: the note was written with both packages of the skill")
