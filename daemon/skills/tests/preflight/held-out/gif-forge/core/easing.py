import math


def ease(kind: str, t: float) -> float:
    if kind == "bounce":
        return abs(math.sin(t * math.pi * 2)) * (1 - t)
    if kind == "inout":
        return t * t * (3 - 2 * t)
    return t
