"""Makes pictures whose names have spaces, accents and other scripts."""

import sys
from pathlib import Path

from PIL import Image

folder = Path(sys.argv[1], "photos")
folder.mkdir()
Image.new("RGB", (800, 600), (200, 30, 30)).save(folder / "été à la plage.png")
Image.new("RGB", (640, 640), (30, 200, 30)).save(folder / "写真 1.png")
Image.new("RGB", (200, 100), (30, 30, 200)).save(folder / "small.BMP")
Image.new("RGB", (400, 1200), (90, 90, 90)).save(folder / "tall.webp")
