from collections import Counter
from dateutil import parser as dp


def check(series):
    kinds = Counter()
    for v in series.dropna():
        try:
            dp.parse(str(v))
            kinds["date"] += 1
        except (ValueError, OverflowError):
            kinds["other"] += 1
    return ", ".join(f"{k}={n}" for k, n in kinds.items())
