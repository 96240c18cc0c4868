"""Checks the pages and their stamps."""

import sys
from pathlib import Path

from pypdf import PdfReader


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


pages = PdfReader(Path(sys.argv[1], "out/stamped.pdf")).pages
texts = [page.extract_text() for page in pages]
expect("pages", [text.split("\n")[0] for text in texts], ["bill page 1", "terms page 1", "terms page 2"])
expect("stamps", ["PAID" in text for text in texts], [True] * 3)
