import argparse
import shutil
import subprocess

import pytesseract
from pdf2image import convert_from_path

try:
    import cv2
    import numpy as np
except ImportError:          # deskewing is a nicety
    cv2 = np = None


def deskew(img):
    if cv2 is None:
        return img
    arr = np.array(img.convert("L"))
    cv2.threshold(arr, 0, 255, cv2.THRESH_OTSU)
    return img


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("pdf")
    ap.add_argument("--lang", default="eng")
    ap.add_argument("-o", "--out", required=True)
    ap.add_argument("--searchable", action="store_true")
    a = ap.parse_args()

    if a.searchable and shutil.which("ocrmypdf"):
        subprocess.run(["ocrmypdf", "-l", a.lang, a.pdf, a.out], check=True)
        return

    pages = convert_from_path(a.pdf, dpi=300)
    with open(a.out, "w") as fh:
        for i, page in enumerate(pages, 1):
            text = pytesseract.image_to_string(deskew(page), lang=a.lang)
            fh.write(text + "\f")
            print(f"page {i}/{len(pages)} ... {len(text)} chars")


main()
