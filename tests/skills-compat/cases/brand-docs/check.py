"""Checks the Word document, the web page and the e-book."""

import sys
import zipfile
from pathlib import Path

from docx import Document


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
document = Document(out / "text.docx")
headings = [paragraph.text for paragraph in document.paragraphs if paragraph.style.name == "Heading 1"]
expect("headings of the Word document", headings, ["When to water", "Amounts"])
expect("title of the Word document", document.core_properties.title, "Water in summer")
rows = [[cell.text for cell in row.cells] for row in document.tables[0].rows]
expect("table of the Word document", rows, [["Plant", "Litres"], ["Tomato", "1.5"], ["Cucumber", "2"]])
page = (out / "text.html").read_text()
for part in (
    "<title>Water in summer – House of Gardens</title>",
    '<link rel="stylesheet" href="house.css">',
    "<em>morning</em>",
    '<a href="#table">the table</a>',
    "Rain counts.",
    '<h1 id="table">Amounts</h1>',
    "<footer>House of Gardens</footer>",
):
    expect(f"{part!r} in the page", page.count(part), 1)
expect("style sheet beside the page", (out / "house.css").read_text().startswith("header, footer"), True)
with zipfile.ZipFile(out / "text.epub") as book:
    expect("kind of the e-book", book.read("mimetype"), b"application/epub+zip")
    text = "".join(book.read(name).decode() for name in book.namelist() if name.endswith(".xhtml"))
expect("text of the e-book", text.count("Cucumber"), 1)
