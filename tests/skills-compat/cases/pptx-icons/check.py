"""Checks the deck, its icons and its thumbnails."""

import io
import sys
from pathlib import Path

from PIL import Image
from pptx import Presentation


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
deck = Presentation(out / "deck.pptx")
titles = [slide.shapes[0].text_frame.text for slide in deck.slides]
expect("titles", titles, ["Garden in June", "Hours of sun"])
icons = [Image.open(io.BytesIO(shape.image.blob)) for shape in deck.slides[0].shapes if hasattr(shape, "image")]
expect("sizes of the icons", [icon.size for icon in icons], [(256, 256)] * 2)
colours = [max(icon.convert("RGBA").getcolors(65536))[1][3] for icon in icons]
expect("icons have a transparent ground or a shape", all(colour in (0, 255) for colour in colours), True)
shades = [{pixel[1][:3] for pixel in icon.convert("RGBA").getcolors(65536) if pixel[1][3] == 255} for icon in icons]
expect("colours of the icons", [(46, 125, 50) in shades[0], (249, 168, 37) in shades[1]], [True, True])
chart = next(shape.chart for shape in deck.slides[1].shapes if shape.has_chart)
expect("values of the chart", list(chart.plots[0].series[0].values), [7.0, 11.0])
for number in (1, 2):
    with Image.open(out / f"slide-{number}.png") as image:
        expect(f"size of thumbnail {number}", image.size, (480, 270))
        expect(f"thumbnail {number} is not empty", image.convert("L").getextrema()[0] < 128, True)
