import math


def ease(t, kind="linear"):
    return t if kind == "linear" else math.sin(t * math.pi / 2)
