import csv, sys
import openpyxl
from openpyxl.styles import Font

wb = openpyxl.Workbook()
ws = wb.active
n = -1
with open(sys.argv[1], newline="", encoding="utf-8-sig") as fh:
    for n, row in enumerate(csv.reader(fh)):
        ws.append(row)
for c in ws[1]:
    c.font = Font(bold=True)
wb.save(sys.argv[2])
print(n, "rows")
