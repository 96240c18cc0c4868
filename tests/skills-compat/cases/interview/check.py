"""Checks the booking form."""

import json
import sys
from pathlib import Path

form = json.loads(Path(sys.argv[1], "out/booking.json").read_text())
if form != {"to": "Zürich", "date": "2026-07-04", "people": 3, "train": True}:
    sys.exit(f"out/booking.json has other answers: {form}")
print("ok: the form has the answers of stdin")
