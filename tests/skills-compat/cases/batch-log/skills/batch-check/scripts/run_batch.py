"""Checks numbered items one after another and reports progress."""

import argparse
import json
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--items", type=int, required=True)
parser.add_argument("--delay", type=float, default=0)
parser.add_argument("--report", required=True)
args = parser.parse_args()
primes = []
for item in range(1, args.items + 1):
    time.sleep(args.delay)
    if item > 1 and all(item % divisor for divisor in range(2, item)):
        primes.append(item)
    print(f"{item}/{args.items} ({100 * item // args.items} %)", file=sys.stderr, flush=True)
with open(args.report, "w") as file:
    json.dump({"items": args.items, "primes": primes}, file)
print(f"done: {len(primes)} of {args.items} items are prime")
