#!/usr/bin/env python3
"""Writes a workbook whose totals are formulas, and lets LibreOffice calculate them. See ../SKILL.md."""

import argparse
import csv
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from openpyxl import Workbook, load_workbook
from openpyxl.chart import BarChart, Reference
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter

BOLD = Font(bold=True)
MONEY, PERCENT = "#,##0.00", "0.0%"
NO_GROUP = "(none)"


def fail(code, message):
    print(f"sales_workbook: {message}", file=sys.stderr)
    sys.exit(code)


def number(text):
    """Returns the number that a cell has, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_table(path):
    """Returns the names of the columns and the rows, each as long as the header."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header, *rows = csv.reader(file, strict=True)
    except OSError as error:
        fail(3, f"{path}: {error.strerror}")
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        fail(4, f"{path} is no table: {error}")
    rows = [row for row in rows if row]
    if not rows:
        fail(4, f"{path} has no rows")
    for line, row in enumerate(rows, 2):
        if len(row) > len(header):
            fail(4, f"{path}: row {line} has {len(row)} cells, and the header {len(header)}")
    return header, [row + [""] * (len(header) - len(row)) for row in rows]


def add_data(sheet, header, rows, by, total):
    """Writes the rows as texts, and the cells of the column that is added up as numbers."""
    sheet.append(header)
    for row in rows:
        row = list(row)
        row[by], row[total] = row[by] or NO_GROUP, number(row[total])
        sheet.append([None if cell == "" else cell for cell in row])
    for cell in (cell for row in sheet.iter_rows() for cell in row):
        # A text that begins with "=" is the user's text and no formula.
        if cell.data_type == "f":
            cell.data_type = "s"
    for cell in sheet[1]:
        cell.font = BOLD
    sheet.freeze_panes = "A2"


def add_summary(sheet, groups, last, names, columns):
    """Writes one row of formulas per group, a row of totals and a chart."""
    group_cells, sum_cells = (f"Data!${column}$2:${column}${last}" for column in columns)
    end = len(groups) + 1
    sheet.append([names[0], "rows", names[1], "share"])
    for row, group in enumerate(groups, 2):
        same = f"EXACT({group_cells},$A{row})"
        sheet.append([None, f"=SUMPRODUCT({same}*1)", f"=SUMPRODUCT({same}*{sum_cells})", f"=IF(C${end + 1}=0,0,C{row}/C${end + 1})"])
        sheet[f"A{row}"].value, sheet[f"A{row}"].data_type = group, "s"
    sheet.append(["Total", f"=SUM(B2:B{end})", f"=SUM(C2:C{end})", f"=SUM(D2:D{end})"])
    for column, style in (("C", MONEY), ("D", PERCENT)):
        sheet.column_dimensions[column].width = 14
        for row in range(2, end + 2):
            sheet[f"{column}{row}"].number_format = style
    sheet.column_dimensions["A"].width = max(12, *(len(group) + 2 for group in groups))
    for cell in (*sheet[1], *sheet[end + 1]):
        cell.font = BOLD
    chart = BarChart()
    chart.title, chart.legend = f"{names[1]} by {names[0]}", None
    chart.add_data(Reference(sheet, min_col=3, min_row=1, max_row=end), titles_from_data=True)
    chart.set_categories(Reference(sheet, min_col=1, min_row=2, max_row=end))
    sheet.add_chart(chart, "F2")


def calculate(draft, folder):
    """Lets LibreOffice calculate the formulas, and returns the workbook with their values."""
    target = folder / "calculated"
    command = ["soffice", "--headless", "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", target, draft]
    # Settings of LibreOffice of its own, since two that share them do not run at the same time.
    command.insert(1, f"-env:UserInstallation={(folder / 'profile').as_uri()}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(5, f"LibreOffice: {error}")
    if not (target / draft.name).exists():
        fail(5, f"LibreOffice wrote no workbook: {done.stderr.strip()}")
    return target / draft.name


def check(path, expected):
    """Compares the calculated values with sums of our own, and returns the rows of the summary."""
    summary = load_workbook(path, data_only=True, read_only=True)["Summary"]
    shown = [list(row) for row in summary.iter_rows(min_row=2, max_row=len(expected) + 1, max_col=4, values_only=True)]
    for row, wanted in zip(shown, expected, strict=True):
        for value, want in zip(row[1:3], wanted[1:]):
            if not isinstance(value, (int, float)) or not math.isclose(value, want, rel_tol=1e-9, abs_tol=1e-6):
                fail(5, f"the formulas of {row[0]!r} have the value {value!r}, not {want!r}")
    return shown


def main():
    parser = argparse.ArgumentParser(description="Writes a workbook whose totals are formulas.")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--by", required=True, metavar="COLUMN", help="one row of the summary for each of its values")
    parser.add_argument("--sum", required=True, metavar="COLUMN", dest="total", help="the column that is added up")
    parser.add_argument("--out", metavar="FILE", type=Path, default=Path(os.environ.get("OUTPUT_DIR", "out"), "sales.xlsx"))
    args = parser.parse_args()
    header, rows = read_table(args.file)
    for name in (args.by, args.total):
        if name not in header:
            fail(2, f"there is no column {name!r}; the columns are {', '.join(header)}")
    if args.by == args.total:
        fail(2, "--by and --sum name the same column")
    by, total = header.index(args.by), header.index(args.total)
    sums = {}
    for row in rows:
        count, value = sums.get(row[by] or NO_GROUP, (0, 0.0))
        sums[row[by] or NO_GROUP] = count + 1, value + (number(row[total]) or 0.0)
    groups = sorted(sums, key=lambda group: (-sums[group][1], group))

    workbook = Workbook()
    columns = [get_column_letter(place + 1) for place in (by, total)]
    add_summary(workbook.active, groups, len(rows) + 1, (args.by, args.total), columns)
    workbook.active.title = "Summary"
    add_data(workbook.create_sheet("Data"), header, rows, by, total)
    expected = [(group, *sums[group]) for group in groups]
    expected.append(("Total", len(rows), sum(value for _, value in sums.values())))
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "sales.xlsx")
        workbook.save(draft)
        calculated = calculate(draft, Path(folder))
        shown = check(calculated, expected)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(calculated, args.out)
    width = max(len(str(row[0])) for row in shown)
    for name, count, value, share in shown:
        print(f"{name:<{width}}  {count:>7,} rows  {value:>14,.2f}  {share:>6.1%}")
    print(f"{len(rows):,} rows, {len(shown) * 3} formulas, all with the expected values: wrote {args.out}")


if __name__ == "__main__":
    main()
