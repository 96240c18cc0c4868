#!/usr/bin/env python3
"""Renders the report of open invoices."""

import argparse
import sqlite3
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("database")
parser.add_argument("report", type=Path)
parser.add_argument("--day", required=True)
args = parser.parse_args()
with sqlite3.connect(f"file:{args.database}?mode=ro", uri=True) as database:
    database.row_factory = sqlite3.Row
    rows = [dict(row) for row in database.execute("SELECT * FROM open_amounts")]
loader = FileSystemLoader(Path(__file__).parent.parent / "templates")
templates = Environment(
    loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)
templates.filters["euro"] = lambda cents: f"{cents / 100:,.2f} €"
args.report.write_text(templates.get_template("report.html.j2").render(rows=rows, day=args.day))
print(f"{len(rows)} customers with open invoices")
