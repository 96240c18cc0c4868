"""Checks the pictures and the PDF file."""

import sys
from pathlib import Path

from PIL import Image
from pypdf import PdfReader


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
for name, size in (("card", (320, 200)), ("plain", (300, 150))):
    with Image.open(out / f"{name}.png") as image:
        expect(f"size of {name}.png", image.size, size)
        expect(f"ground of {name}.png", image.convert("RGB").getpixel((0, 0)), (0, 170, 85))
page = PdfReader(out / "card.pdf").pages[0]
expect("text", " ".join(page.extract_text().split())[:5], "Grüße")
objects = [font.get_object() for font in page["/Resources"]["/Font"].values()]
fonts = " ".join(str(font.get("/BaseFont") or font["/FontDescriptor"]["/FontName"]) for font in objects)
for font in ("Gelasio", "NotoSansCJK", "Loma", "Lohit"):
    expect(f"typeface {font}", font in fonts, True)
