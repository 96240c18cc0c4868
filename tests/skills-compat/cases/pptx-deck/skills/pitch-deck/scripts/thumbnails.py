#!/usr/bin/env python3
"""Shows the slides of a deck in one picture."""

import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

SIZE, GAP = (480, 270), 10

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("deck", type=Path)
parser.add_argument("picture")
parser.add_argument("--columns", type=int, default=3)
args = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    convert = ["soffice", "--headless", "--convert-to", "pdf", "--outdir", folder, args.deck]
    subprocess.run(convert, check=True, capture_output=True)
    pdf = Path(folder, args.deck.stem + ".pdf")
    subprocess.run(["pdftoppm", "-r", "50", "-png", pdf, f"{folder}/slide"], check=True)
    slides = [Image.open(path).convert("RGB").resize(SIZE) for path in sorted(Path(folder).glob("slide*.png"))]
rows = -(-len(slides) // args.columns)
picture = Image.new("RGB", (args.columns * (SIZE[0] + GAP) + GAP, rows * (SIZE[1] + GAP) + GAP), "gray")
for number, slide in enumerate(slides):
    row, column = divmod(number, args.columns)
    picture.paste(slide, (GAP + column * (SIZE[0] + GAP), GAP + row * (SIZE[1] + GAP)))
picture.save(args.picture, quality=85)
print(f"{len(slides)} slides in {rows} rows")
