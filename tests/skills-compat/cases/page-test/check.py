"""Checks the picture of the page."""

import sys
from pathlib import Path

from PIL import Image


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


with Image.open(Path(sys.argv[1], "out/shop.png")) as image:
    picture = image.convert("RGB")
    expect("size", picture.size, (640, 400))
    expect("black text on a white page", picture.convert("L").getextrema(), (0, 255))
    # The text is black and grey; only the emoji of the heading has a colour.
    colourful = sum(count for count, pixel in picture.getcolors(640 * 400) if max(pixel) - min(pixel) > 60)
    expect("an emoji in colours", colourful > 50, True)
