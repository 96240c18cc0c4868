"""Says whether a GIF keeps the limits of its use."""

import argparse
import sys
from pathlib import Path

from PIL import Image

LIMITS = {"emoji": (128, 24, 64 << 10), "message": (480, 60, 1 << 20)}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("gif", type=Path)
parser.add_argument("--for", dest="use", choices=LIMITS, required=True)
args = parser.parse_args()
side, frames, size = LIMITS[args.use]
with Image.open(args.gif) as image:
    faults = []
    if max(image.size) > side:
        faults.append(f"{image.width} × {image.height} is larger than {side} × {side}")
    if image.n_frames > frames:
        faults.append(f"{image.n_frames} frames are more than {frames}")
    if args.gif.stat().st_size > size:
        faults.append(f"{args.gif.stat().st_size} bytes are more than {size}")
print("\n".join(faults) or f"good for {args.use}")
sys.exit(1 if faults else 0)
