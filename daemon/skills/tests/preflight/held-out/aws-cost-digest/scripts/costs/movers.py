import statistics
from collections import defaultdict

import arrow


def movers(days):
    a, b = defaultdict(list), defaultdict(list)
    cut = arrow.utcnow().shift(weeks=-1).date()
    for d in days:
        tgt = b if arrow.get(d["TimePeriod"]["Start"]).date() >= cut else a
        for g in d["Groups"]:
            tgt[g["Keys"][0]].append(float(g["Metrics"]["UnblendedCost"]["Amount"]))
    return sorted(
        ((k, statistics.fmean(b.get(k, [0])) - statistics.fmean(a.get(k, [0]))) for k in {*a, *b}),
        key=lambda t: -abs(t[1]),
    )
