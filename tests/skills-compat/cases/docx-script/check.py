"""Checks the document, its PDF and the picture of its page."""

import sys
from pathlib import Path

from docx import Document
from PIL import Image
from pypdf import PdfReader


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
document = Document(out / "letter.docx")
texts = [paragraph.text for paragraph in document.paragraphs]
expect("paragraphs", texts, ["Hire of the hall", "Dear Zoë, thank you for your order.", "Collect the key", "Close the windows"])
expect("style of the heading", document.paragraphs[0].style.name, "Heading 1")
rows = [[cell.text for cell in row.cells] for row in document.tables[0].rows]
expect("table", rows, [["Item", "Price"], ["Hall", "120 €"], ["Chairs", "30 €"]])
pdf = PdfReader(out / "letter.pdf")
expect("pages of the PDF", len(pdf.pages), 1)
text = pdf.pages[0].extract_text()
for part in ("Dear Zoë", "Chairs", "Page 1"):
    expect(f"{part!r} in the PDF", text.count(part), 1)
fonts = {str(font.get_object()["/BaseFont"]).rpartition("+")[2] for font in pdf.pages[0]["/Resources"]["/Font"].values()}
expect("typeface with the metrics of Georgia", any("Gelasio" in font for font in fonts), True)
with Image.open(out / "letter.png") as image:
    expect("size of the picture", image.size, (414, 585))
