#!/usr/bin/env python3
"""Unpack a Word file and indent its XML."""
import sys
import zipfile
from pathlib import Path

import defusedxml.minidom


def unpack(source: str, target: str) -> None:
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source) as archive:
        archive.extractall(folder)
    for part in folder.rglob("*.xml"):
        text = defusedxml.minidom.parseString(part.read_bytes()).toprettyxml(indent="  ")
        part.write_text(text)


if __name__ == "__main__":
    unpack(sys.argv[1], sys.argv[2])
