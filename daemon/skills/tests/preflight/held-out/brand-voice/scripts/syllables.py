import re


def count(word: str) -> int:
    n = len(re.findall(r"[aeiouy]+", word.lower()))
    if word.lower().endswith("e") and n > 1:
        n -= 1
    return max(1, n)
