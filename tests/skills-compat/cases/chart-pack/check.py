"""Checks the charts: size, colours of the series, texts."""

import sys
import xml.etree.ElementTree as ElementTree
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
wanted = {"sales": ["Sales 2026 – März", "Jan", "Feb", "Mar", "North", "Süd"], "trend": ["Trend", "Feb", "Süd"]}
for name, words in wanted.items():
    texts = [node.text for node in ElementTree.parse(out / f"{name}.svg").iter("{http://www.w3.org/2000/svg}text")]
    expect(f"words in {name}.svg", [texts.count(word) for word in words], [1] * len(words))
