#!/usr/bin/env python3
import re
import sys
from statistics import mean

from syllables import count

text = open(sys.argv[1], encoding="utf-8").read()
sent = [s for s in re.split(r"[.!?]+\s", text) if s.strip()]
words = re.findall(r"[A-Za-z']+", text)
score = 206.835 - 1.015 * (len(words) / max(1, len(sent))) - 84.6 * mean(count(w) for w in words)
print(f"{score:.1f}")
sys.exit(score < 55)
