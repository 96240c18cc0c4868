"""Checks one line of each converted file."""

import sys
from pathlib import Path

folder = Path(sys.argv[1], "out/markdown")
wanted = {
    "letter.docx": ["# Offer", "Ten tomato plants."],
    "prices.xlsx": ["## Prices", "| plant | price |", "| tomato | 2.5 |"],
    "deck.pptx": ["# Spring", "Sow in March"],
    "page.pdf": ["A page of a book"],
    "news.html": ["## News", "* Rain at last", "| a | b |", "| 1 | 2 |"],
    "members.csv": ["| name | plot |", "| Zoë | 7 |"],
}
found = sorted(path.name for path in folder.iterdir())
if found != sorted(["index.md", *(f"{name}.md" for name in wanted)]):
    sys.exit(f"out/markdown has other files: {found}")
for name, lines in wanted.items():
    text = (folder / f"{name}.md").read_text().splitlines()
    missing = [line for line in lines if line not in [row.strip() for row in text]]
    if missing:
        sys.exit(f"{name}.md lacks {missing}: {text}")
    print(f"ok: {name} was converted")
index = (folder / "index.md").read_text()
if index.count("\n- [") != len(wanted) or "- [letter.docx](letter.docx.md), 5 words" not in index:
    sys.exit(f"index.md has other entries: {index!r}")
print("ok: the index names every file")
