"""Checks the formulas of the workbook and the values that were calculated for them."""

import sys
from pathlib import Path

from openpyxl import load_workbook


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


path = Path(sys.argv[1], "out/budget.xlsx")
formulas, values = load_workbook(path), load_workbook(path, data_only=True)
expect("formula of a row", formulas["Costs"]["D3"].value, "=B3-C3")
expect("formula across sheets", formulas["Summary"]["B2"].value, "=SUM(Costs!C2:C4)")
summary = [cell.value for cell in values["Summary"]["B"]]
expect("values of the summary", summary, [720, 640.75, "within budget", "Soil"])
expect("values of a column", [values["Costs"][f"D{row}"].value for row in (2, 3, 4)], [49.5, -60, 89.75])
expect("share", values["Costs"]["E3"].value, 1.5)
expect("colour of inputs", formulas["Costs"]["B2"].font.color.rgb[-6:], "0000FF")
