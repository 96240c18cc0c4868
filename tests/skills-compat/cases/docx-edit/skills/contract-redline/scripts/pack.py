#!/usr/bin/env python3
"""Packs a folder into a document: pack.py FOLDER DOCUMENT.docx."""

import sys
import zipfile
from pathlib import Path

from lxml import etree

FIRST = "[Content_Types].xml"

folder = Path(sys.argv[1])
names = sorted((path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
names.sort(key=lambda name: name != FIRST)
for name in names:
    if name.endswith((".xml", ".rels")):
        try:
            etree.parse(folder / name)
        except etree.XMLSyntaxError as error:
            sys.exit(f"{name} is not XML: {error}")
with zipfile.ZipFile(sys.argv[2], "w", zipfile.ZIP_DEFLATED) as archive:
    for name in names:
        archive.write(folder / name, name)
print(f"packed {len(names)} parts")
