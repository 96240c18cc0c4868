"""Checks the table and the report."""

import re
import sys
from pathlib import Path

out = Path(sys.argv[1], "out")
table = (out / "open.csv").read_text().split()
wanted = ["customer,invoices,cents,oldest", '"Fish', "&", 'Sons",2,150050,2026-02-10', '"Garden,', 'Ltd.",1,45000,2026-04-15']
if table != wanted:
    sys.exit(f"out/open.csv has other rows: {table}")
print("ok: the table has the open amounts")
report = (out / "report.html").read_text()
rows = re.findall(r'<tr class="(\w+)"><td>(.*?)</td><td>(.*?)</td></tr>', report)
if rows != [("late", "Fish &amp; Sons", "1,500.50 €"), ("open", "Garden, Ltd.", "450.00 €")]:
    sys.exit(f"out/report.html has other rows: {rows}")
for part in ("<title>Open invoices, 2026-03-31</title>", "<p>Total: 1,950.50 €</p>"):
    if report.count(part) != 1:
        sys.exit(f"out/report.html lacks {part!r}: {report}")
print("ok: the report has the rows of the table, escaped")
