"""Checks the profile and the answer of the query."""

import json
import sys
from pathlib import Path


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
profile = json.loads((out / "profile.json").read_text())
expect("rows", profile["rows"], 48)
expect("amounts", profile["columns"]["amount"], {"missing": 3, "different": 38, "mean": 27.67, "median": 27.0})
expect("customers", profile["columns"]["customer"]["different"], 4)
expect("months", profile["by_month"], {"2026-01": 415.0, "2026-02": 372.0, "2026-03": 374.0, "2026-04": 84.0})
table = (out / "top.csv").read_text().split()
header = "customer,orders,turnover,latest"
expect("top customers", table, [header, "Grace,12,326,2026-04-03", "Linus,10,280,2026-03-30", "Ada,10,272,2026-04-05"])
