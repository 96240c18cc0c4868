"""Checks the log, its backup and the report."""

import json
import sys
from pathlib import Path

out = Path(sys.argv[1], "out")
running = ["2026-02-27", "2026-02-28", "2026-03-01"]
log = json.loads((out / "habits.json").read_text())
if log != {"running": running, "reading": ["2026-03-01"]}:
    sys.exit(f"habits.json has other entries: {log}")
backup = json.loads((out / "habits.bak").read_text())
if backup != {"running": running}:
    sys.exit(f"habits.bak is not the log before the last change: {backup}")
report = (out / "habits.txt").read_text()
if report != "reading: 1 days, longest streak 1\nrunning: 3 days, longest streak 3\n":
    sys.exit(f"habits.txt has other text: {report!r}")
print("ok: three commands changed one log in the skill's folder")
