"""Checks the slides, the notes and the picture of all slides."""

import sys
from pathlib import Path

from PIL import Image
from pptx import Presentation


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
slides = list(Presentation(out / "deck.pptx").slides)
titles = [slide.shapes.title.text for slide in slides]
expect("titles", titles, ["Sensors for every garden", "The problem", "The answer"])
points = [paragraph.text for paragraph in slides[2].placeholders[1].text_frame.paragraphs]
expect("points", points, ["A sensor for 9 €", "An app that everyone has already"])
expect("notes", slides[1].notes_slide.notes_text_frame.text, "Ask who has lost a plant this year.")
picture = Image.open(out / "slides.jpg").convert("L")
expect("size of the picture", picture.size, (990, 570))
for number, corner in enumerate([(10, 10), (500, 10), (10, 290)], 1):
    darkest, lightest = picture.crop((*corner, corner[0] + 480, corner[1] + 270)).getextrema()
    expect(f"text on slide {number}", (darkest < 100, lightest > 240), (True, True))
