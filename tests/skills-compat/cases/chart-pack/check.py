"""Checks the charts: size, colours of the series, texts."""

import sys
from pathlib import Path

from PIL import Image


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
expect("files", sorted(path.name for path in out.iterdir()), ["sales.png", "sales.svg", "trend.png", "trend.svg"])
for name in ("sales", "trend"):
    image = Image.open(out / f"{name}.png").convert("RGB")
    expect(f"size of {name}", image.size, (900, 500))
    colours = dict((colour, count) for count, colour in image.getcolors(100_000))
    teal, amber = colours.get((15, 118, 110), 0), colours.get((180, 83, 9), 0)
    least = 5000 if name == "sales" else 100
    if min(teal, amber) < least:
        sys.exit(f"{name}.png has {teal} pixels of the first series and {amber} of the second, not {least}")
    print(f"ok: both series in {name}")
svg = (out / "sales.svg").read_text()
for text in ("Sales 2026 – März", "Feb", "North", "Süd"):
    expect(f"{text!r} is text in the SVG", f">{text}</text>" in svg, True)
