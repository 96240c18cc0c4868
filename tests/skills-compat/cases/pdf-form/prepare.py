"""Makes the form."""

import sys
from pathlib import Path

from reportlab.pdfgen.canvas import Canvas

canvas = Canvas(str(Path(sys.argv[1], "application.pdf")), invariant=1)
canvas.drawString(72, 780, "Application for a garden plot")
form = canvas.acroForm
for row, name in enumerate(("name", "street", "city")):
    canvas.drawString(72, 740 - 30 * row, name.capitalize())
    form.textfield(name=name, x=160, y=732 - 30 * row, width=300, height=20)
canvas.drawString(72, 650, "Member")
form.checkbox(name="member", x=160, y=645, size=16)
canvas.drawString(72, 620, "Size")
form.choice(name="size", options=["small", "large"], value="small", x=160, y=612, width=100, height=20)
canvas.save()
