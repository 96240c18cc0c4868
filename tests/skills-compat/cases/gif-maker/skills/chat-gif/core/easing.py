"""Curves of movements, from 0 to 1."""


def ease_in_out(time):
    return time * time * (3 - 2 * time)


def ease_out_bounce(time):
    for start, height in ((0.36, 0), (0.73, 0.75), (0.91, 0.94), (1.01, 0.98)):
        if time < start:
            middle = {0.36: 0, 0.73: 0.545, 0.91: 0.82, 1.01: 0.955}[start]
            return min(1.0, 7.5625 * (time - middle) ** 2 + height)
    return 1.0
