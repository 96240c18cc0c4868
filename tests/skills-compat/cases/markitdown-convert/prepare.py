"""Makes one file of each kind."""

import sys
from pathlib import Path

from docx import Document
from openpyxl import Workbook
from pptx import Presentation
from reportlab.pdfgen.canvas import Canvas

inputs = Path(sys.argv[1])
letter = Document()
letter.add_heading("Offer", level=1)
letter.add_paragraph("Ten tomato plants.")
letter.save(inputs / "letter.docx")
workbook = Workbook()
workbook.active.title = "Prices"
workbook.active.append(["plant", "price"])
workbook.active.append(["tomato", 2.5])
workbook.save(inputs / "prices.xlsx")
deck = Presentation()
slide = deck.slides.add_slide(deck.slide_layouts[1])
slide.shapes.title.text = "Spring"
slide.placeholders[1].text = "Sow in March"
deck.save(inputs / "deck.pptx")
canvas = Canvas(str(inputs / "page.pdf"), invariant=1)
canvas.drawString(72, 700, "A page of a book")
canvas.save()
