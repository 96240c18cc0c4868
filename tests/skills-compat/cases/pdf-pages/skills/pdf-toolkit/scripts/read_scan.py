#!/usr/bin/env python3
"""Reads the text of a scanned PDF: read_scan.py SCAN.pdf TEXT.txt."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytesseract
from PIL import Image

with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["pdftoppm", "-r", "200", "-gray", "-png", sys.argv[1], f"{folder}/page"], check=True)
    images = sorted(Path(folder).glob("*.png"))
    texts = [pytesseract.image_to_string(Image.open(image)) for image in images]
Path(sys.argv[2]).write_text("\f".join(texts))
print(f"{len(texts)} pages read")
