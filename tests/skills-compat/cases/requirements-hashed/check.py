"""Checks the letters."""

import sys
from pathlib import Path

folder = Path(sys.argv[1], "out/letters")
found = {path.name: path.read_text() for path in folder.glob("*")}
body = "\n\nThe meeting begins at ten.\n"
wanted = {"01-ada.txt": "Hello, Ada!", "02-konrad.txt": "Hallo, Konrad!", "03-grace.txt": "Hello, Grace!"}
if found != {name: first + body for name, first in wanted.items()}:
    sys.exit(f"out/letters has other letters: {found}")
print("ok: three letters in the right languages")
