#!/usr/bin/env python3
"""Recalculates a workbook and looks for errors: recalculate.py FROM.xlsx TO.xlsx."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from openpyxl import load_workbook

source, target = map(Path, sys.argv[1:])
with tempfile.TemporaryDirectory() as folder:
    command = ["soffice", "--headless", "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", folder, source]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    shutil.copyfile(Path(folder, source.name), target)
formulas, errors = 0, []
written, values = load_workbook(target), load_workbook(target, data_only=True)
for sheet in written:
    for row in sheet.iter_rows():
        for cell in row:
            if cell.data_type == "f":
                formulas += 1
            value = values[sheet.title][cell.coordinate].value
            if isinstance(value, str) and value.startswith("#"):
                errors.append(f"{sheet.title}!{cell.coordinate} {value}")
print(json.dumps({"status": "errors" if errors else "good", "formulas": formulas, "errors": errors}))
sys.exit(1 if errors else 0)
