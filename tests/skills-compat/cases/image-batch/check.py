"""Checks sizes, colours and the label of the pictures."""

import sys
from pathlib import Path

from PIL import Image


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
sizes, colours = {}, {}
for path in (out / "web").iterdir():
    with Image.open(path) as picture:
        expect(f"kind of {path.name}", picture.format, "JPEG")
        sizes[path.name] = picture.size
        colours[path.name] = [round(channel / 30) for channel in picture.convert("RGB").getpixel((5, 5))]
        if path.name == "été à la plage.jpg":
            corner = picture.convert("L").crop((160, 210, 320, 240)).getextrema()
            expect("label in the corner", corner[1] > 180, True)
wanted = {"été à la plage.jpg": (320, 240), "写真 1.jpg": (320, 320), "small.jpg": (200, 100), "tall.jpg": (320, 960)}
expect("sizes", sizes, wanted)
expect("colour", colours["写真 1.jpg"], [1, 7, 1])
with Image.open(out / "sheet.png") as sheet:
    expect("size of the sheet", sheet.size, (220, 220))
    # The first pictures in the order of their names: small (blue), tall (gray, 33 pixels wide), été (red), 写真 (green).
    middles = [sheet.convert("RGB").getpixel(place) for place in ((55, 55), (165, 55), (55, 165), (165, 165))]
    brightest = [max(range(3), key=middle.__getitem__) for middle in middles]
    expect("pictures on the sheet", [brightest[0], *brightest[2:]], [2, 0, 1])
