"""Makes the contract."""

import sys
from pathlib import Path

from docx import Document

document = Document()
document.add_heading("Supply contract", level=1)
document.add_paragraph("The supplier is Acme GmbH, Graz.")
document.add_paragraph("Invoices are paid within 30 days.")
document.add_paragraph("Acme GmbH delivers on Mondays.").runs[0].italic = True
document.save(Path(sys.argv[1], "contract.docx"))
