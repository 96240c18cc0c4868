"""Checks the figures of the model and its predictions."""

import csv
import json
import sys
from pathlib import Path


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
metrics = json.loads((out / "metrics.json").read_text())
expect("rows", metrics["rows"], {"train": 60, "test": 20})
expect("accuracy", metrics["accuracy"], 1.0)
expect("confusion", metrics["confusion"], [[13, 0], [0, 7]])
expect("few visits mean leaving", metrics["weights"]["visits"] < -1, True)
with (out / "predictions.csv").open(newline="") as file:
    rows = list(csv.DictReader(file))
expect("predictions", [(row["member"], row["left"]) for row in rows], [("N1", "yes"), ("N2", "no"), ("N3", "yes"), ("N4", "no")])
expect("clear risks", all(abs(float(row["risk"]) - 0.5) > 0.3 for row in rows), True)
