#!/usr/bin/env python3
"""Draws a chart of a CSV file."""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("table")
parser.add_argument("--kind", choices=("bar", "line"), default="line")
parser.add_argument("--title", required=True)
parser.add_argument("--out", required=True)
args = parser.parse_args()
with open(args.table, newline="") as file:
    header, *rows = csv.reader(file)
plt.style.use(Path(__file__).parent.parent / "assets/house.mplstyle")
figure, axes = plt.subplots(layout="constrained")
months, width = [row[0] for row in rows], 0.8 / (len(header) - 1)
for number, name in enumerate(header[1:]):
    heights = [float(row[number + 1]) for row in rows]
    if args.kind == "bar":
        places = [place + width * (number - (len(header) - 2) / 2) for place in range(len(rows))]
        axes.bar(places, heights, width, label=name)
    else:
        axes.plot(months, heights, marker="o", label=name)
axes.set_xticks(range(len(rows)), months)
axes.set_title(args.title)
axes.legend(frameon=False)
for kind in ("png", "svg"):
    figure.savefig(f"{args.out}.{kind}")
print(f"{args.kind} chart of {len(rows)} months and {len(header) - 1} series")
