#!/usr/bin/env python3
"""Keeps habits in a file of the skill's own folder: habits.py add HABIT DATE, habits.py report."""

import datetime
import json
import shutil
import sys
from pathlib import Path

LOG = Path(__file__).resolve().parent.parent / "data/habits.json"
LAST_RUN = Path(__file__).with_name(".last-run")


def longest_streak(days):
    best = run = 0
    previous = None
    for day in sorted(datetime.date.fromisoformat(day) for day in days):
        run = run + 1 if previous and (day - previous).days == 1 else 1
        best, previous = max(best, run), day
    return best


def main():
    habits = json.loads(LOG.read_text())
    if sys.argv[1:2] == ["add"]:
        _, _, habit, day = sys.argv
        shutil.copy(LOG, LOG.with_suffix(".bak"))
        habits.setdefault(habit, []).append(day)
        temporary = LOG.with_suffix(".tmp")
        temporary.write_text(json.dumps(habits, indent=1) + "\n")
        temporary.rename(LOG)
    LAST_RUN.write_text(" ".join(sys.argv[1:]) + "\n")
    for habit, days in sorted(habits.items()):
        print(f"{habit}: {len(days)} days, longest streak {longest_streak(days)}")


if __name__ == "__main__":
    main()
