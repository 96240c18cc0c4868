#!/usr/bin/env python3
"""Makes a deck from an outline: build_deck.py OUTLINE.md DECK.pptx."""

import sys
from pathlib import Path

from pptx import Presentation
from pptx.util import Inches

deck = Presentation()
deck.slide_width, deck.slide_height = Inches(13.333), Inches(7.5)
slide = body = None
for line in Path(sys.argv[1]).read_text().splitlines():
    mark, _, text = line.partition(" ")
    if mark == "#":
        slide = deck.slides.add_slide(deck.slide_layouts[0])
        slide.shapes.title.text = text
    elif mark == "##":
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text, body = text, slide.placeholders[1].text_frame
    elif mark == "-":
        # The first paragraph of an empty frame exists already.
        paragraph = body.add_paragraph() if body.text else body.paragraphs[0]
        paragraph.text = text
    elif mark == ">":
        slide.notes_slide.notes_text_frame.text = text
deck.save(sys.argv[2])
print(f"{len(deck.slides)} slides")
