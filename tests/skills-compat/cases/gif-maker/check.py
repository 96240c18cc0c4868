"""Checks the animation: frames, time, and where the ball is."""

import sys
from pathlib import Path

from PIL import Image


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
expect("files", [path.name for path in out.iterdir()], ["bounce.gif"])
with Image.open(out / "bounce.gif") as gif:
    expect("size", gif.size, (96, 96))
    expect("frames", gif.n_frames, 12)
    balls, times = [], []
    for number in range(gif.n_frames):
        gif.seek(number)
        times.append(gif.info["duration"])
        # The ball is the only thing darker than the background.
        ball = gif.convert("L").point(lambda light: 255 if light < 180 else 0).getbbox()
        balls.append(ball[1])
expect("endless", gif.info.get("loop"), 0)
expect("time of each frame", set(times) <= {80, 83, 84}, True)
expect("top of the ball, first and last", (balls[0], balls[-1]), (8, 67))
