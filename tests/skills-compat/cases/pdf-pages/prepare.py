"""Makes two PDF files with text, and one that is a picture of text."""

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

inputs = Path(sys.argv[1])
for name, count in (("alpha", 3), ("beta", 2)):
    canvas = Canvas(str(inputs / f"{name}.pdf"), pagesize=A4, invariant=1)
    for number in range(1, count + 1):
        canvas.drawString(72, 700, f"{name} page {number}")
        canvas.showPage()
    canvas.save()
scan = Image.new("L", (1240, 600), 255)
draw = ImageDraw.Draw(scan)
font = ImageFont.load_default(size=64)
draw.text((80, 100), "INVOICE 2041", font=font, fill=0)
draw.text((80, 250), "Total: 1234 EUR", font=font, fill=0)
draw.text((80, 400), "Thank you", font=font, fill=0)
scan.save(inputs / "scan.pdf", resolution=150)
