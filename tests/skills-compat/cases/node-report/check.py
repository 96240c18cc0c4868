"""Checks the report."""

import sys
from pathlib import Path

text = Path(sys.argv[1], "out/stock.md").read_text()
wanted = "# Low stock\n\n| item   | count |\n|--------|-------|\n| glue   | 0     |\n| hinges | 6     |\n"
if text != wanted:
    sys.exit(f"out/stock.md has other text: {text!r}")
print("ok: the report was laid out by the package in node_modules")
