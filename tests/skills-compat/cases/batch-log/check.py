"""Checks the report and every line of the listing."""

import json
import sys
from pathlib import Path

report = json.loads(Path(sys.argv[1], "out/batch.json").read_text())
if report != {"items": 40, "primes": [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]}:
    sys.exit(f"out/batch.json has another report: {report}")
print("ok: the report of 40 items")
lines = Path(sys.argv[1], "out/listing.txt").read_text().splitlines()
text = "the quick brown fox jumps over the lazy dog"
if lines != [f"line {number:05}: {text}" for number in range(1, 10001)]:
    sys.exit(f"out/listing.txt has {len(lines)} lines, the last one is {lines[-1:]}")
print("ok: 10,000 lines in order")
