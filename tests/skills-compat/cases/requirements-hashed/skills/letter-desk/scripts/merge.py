#!/usr/bin/env python3
"""Writes one letter per line of a CSV file."""

import argparse
import csv
from pathlib import Path

import skilld_compat_greeting
from skilld_compat_letters import letter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("people", type=Path)
parser.add_argument("--text", type=Path, required=True)
parser.add_argument("--to", type=Path, required=True)
args = parser.parse_args()
args.to.mkdir(parents=True, exist_ok=True)
text = args.text.read_text().strip()
with args.people.open(newline="") as file:
    people = list(csv.DictReader(file))
for number, person in enumerate(people, 1):
    path = args.to / f"{number:02}-{person['name'].lower()}.txt"
    path.write_text(letter(person["name"], text, person["language"]))
print(f"{len(people)} letters, greeted by version {skilld_compat_greeting.__version__}")
