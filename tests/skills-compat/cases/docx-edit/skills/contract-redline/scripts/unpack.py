#!/usr/bin/env python3
"""Unpacks a document: unpack.py DOCUMENT.docx FOLDER."""

import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as archive:
    archive.extractall(sys.argv[2])
    print(f"{len(archive.namelist())} parts")
