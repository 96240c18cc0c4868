"""Checks the notes."""

import sys
from pathlib import Path

text = Path(sys.argv[1], "out/routes.md").read_text()
wanted = "# Routes\n\n- Kiel: 100 km = 62.1 mi\n- Plön: 32.2 km = 20.0 mi\n"
if text != wanted:
    sys.exit(f"out/routes.md has other text: {text!r}")
print("ok: the notes were made with packages of the lock file")
