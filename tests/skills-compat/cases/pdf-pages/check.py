"""Checks the pages, the images and the text of the scan."""

import sys
from pathlib import Path

from PIL import Image
from pypdf import PdfReader


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
texts = [page.extract_text().strip() for page in PdfReader(out / "all.pdf").pages]
expect("joined pages", texts, ["alpha page 1", "alpha page 2", "beta page 2"])
parts = [PdfReader(path).pages[0].extract_text().strip() for path in sorted((out / "parts").iterdir())]
expect("split pages", parts, texts)
expect("rotation", [page.rotation for page in PdfReader(out / "rotated.pdf").pages], [90, 90, 90])
for number in (1, 2, 3):
    with Image.open(out / f"page-{number}.png") as image:
        expect(f"size of image {number}", image.size, (497, 702))
        expect(f"image {number} has text", image.convert("L").getextrema()[0] < 128, True)
lines = [line for line in (out / "scan.txt").read_text().splitlines() if line.strip()]
expect("text of the scan", lines, ["INVOICE 2041", "Total: 1234 EUR", "Thank you"])
