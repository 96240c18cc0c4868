#!/usr/bin/env python3
import json, re, sys
from collections import defaultdict

RISK = {r"auth|crypt|token|secret": 5, r"migrations?/": 4, r"\.sql$": 3, r"test": -2}
doc = json.load(open(sys.argv[1]))
score = defaultdict(float)
for line in doc["churn"].splitlines():
    n, f = line.split("\t")
    score[f] += int(n) ** 0.5
for f in doc["meta"]["files"]:
    score[f["path"]] += (f["additions"] + f["deletions"]) / 50
    for pat, w in RISK.items():
        if re.search(pat, f["path"], re.I):
            score[f["path"]] += w
for f, s in sorted(score.items(), key=lambda kv: -kv[1]):
    print(f"{s:6.1f}  {f}")
