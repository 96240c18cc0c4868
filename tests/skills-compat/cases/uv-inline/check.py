"""Checks the card. French is only in version 1.1 of the package, the highest that the script allows."""

import sys
from pathlib import Path

lines = Path(sys.argv[1], "out/card.txt").read_text().splitlines()
frame = "+---------------+"
if lines != [frame, "| Bonjour, Ada! |", frame, "drawn with skilld-compat-greeting 1.1"]:
    sys.exit(f"out/card.txt has other lines: {lines}")
print("ok: the card was drawn with version 1.1 of the script's own dependency")
