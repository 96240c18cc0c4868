"""Makes two PDF files, and one that is none."""

import sys
from pathlib import Path

from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

inputs = Path(sys.argv[1])
for name, count in (("bill", 1), ("terms", 2)):
    canvas = Canvas(str(inputs / f"{name}.pdf"), pagesize=A4, invariant=1)
    for number in range(1, count + 1):
        canvas.drawString(72, 700, f"{name} page {number}")
        canvas.showPage()
    canvas.save()
(inputs / "note.txt").write_text("a note\n")
