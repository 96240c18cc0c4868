"""Checks the document and its PDF."""

import sys
from pathlib import Path

from docx import Document
from pypdf import PdfReader


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
document = Document(out / "minutes.docx")
headings = [text.text for text in document.paragraphs if text.style.name.startswith(("Heading", "Title"))]
expect("headings", headings, ["Garden meeting", "Greenhouse", "Open day", "Actions"])
rows = [[cell.text for cell in row.cells] for row in document.tables[0].rows]
actions = [["Jürgen", "Order the sensors", "2026-03-20"], ["Zoë", "Print the posters", "2026-05-01"]]
expect("table of actions", rows, [["Who", "What", "Due"], *actions])
expect("title property", document.core_properties.title, "Garden meeting")
expect("footer", document.sections[0].footer.paragraphs[0].text, "Minutes of 2026-03-04")
pdf = PdfReader(out / "minutes.pdf")
expect("pages of the PDF", len(pdf.pages), 1)
expect("paper of the PDF", [round(side) for side in pdf.pages[0].mediabox[2:]], [595, 842])
text = pdf.pages[0].extract_text()
for part in ("Present: Ada, Jürgen, Zoë", "The roof leaks above the tomatoes.", "Minutes of 2026-03-04"):
    expect(f"{part!r} in the PDF", text.count(part), 1)
