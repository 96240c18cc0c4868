"""Checks the edited contract: it opens, and has exactly the tracked changes."""

import sys
import zipfile
from pathlib import Path

from docx import Document
from lxml import etree


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
path = Path(sys.argv[1], "out/contract.docx")
with zipfile.ZipFile(path) as archive:
    expect("first part", archive.namelist()[0], "[Content_Types].xml")
    root = etree.fromstring(archive.read("word/document.xml"))
changes = [(node.tag[len(W) :], node.get(W + "author"), "".join(node.itertext())) for node in root.iter(W + "ins", W + "del")]
expect("tracked changes", changes, [("del", "Legal", "Acme GmbH"), ("ins", "Legal", "Acme SE")] * 2)
texts = [paragraph.text for paragraph in Document(path).paragraphs]
expect("silent change", texts[2], "Invoices are paid within 45 days.")
italic = [run.text for run in Document(path).paragraphs[3].runs if run.italic]
expect("style kept", italic, ["", " delivers on Mondays."])
