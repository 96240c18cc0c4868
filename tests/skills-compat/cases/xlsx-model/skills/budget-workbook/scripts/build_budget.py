#!/usr/bin/env python3
"""Builds a budget: build_budget.py COSTS.csv BUDGET.xlsx."""

import csv
import sys

from openpyxl import Workbook
from openpyxl.styles import Font

BLUE, BOLD = Font(color="0000FF"), Font(bold=True)

with open(sys.argv[1], newline="") as file:
    costs = list(csv.DictReader(file))
workbook = Workbook()
sheet = workbook.active
sheet.title = "Costs"
sheet.append(["Item", "Planned", "Spent", "Left", "Share"])
last = len(costs) + 1
for row, cost in enumerate(costs, 2):
    sheet.append([cost["item"], float(cost["planned"]), float(cost["spent"]), f"=B{row}-C{row}", f"=C{row}/B{row}"])
    sheet[f"B{row}"].font = sheet[f"C{row}"].font = BLUE
    sheet[f"E{row}"].number_format = "0.0%"
for cell in sheet[1]:
    cell.font = BOLD
summary = workbook.create_sheet("Summary")
summary.append(["Planned", f"=SUM(Costs!B2:B{last})"])
summary.append(["Spent", f"=SUM(Costs!C2:C{last})"])
summary.append(["State", '=IF(B2>B1,"over budget","within budget")'])
summary.append(["Largest item", f"=INDEX(Costs!A2:A{last},MATCH(MAX(Costs!C2:C{last}),Costs!C2:C{last},0))"])
workbook.save(sys.argv[2])
print(f"{len(costs)} items")
