"""Collect frames, quantise them, write a GIF."""
from pathlib import Path
from typing import List

import imageio.v3 as iio
import numpy as np
from PIL import Image

from .validators import check_size


class GIFBuilder:
    def __init__(self, w: int, h: int, fps: int = 12):
        self.w, self.h, self.fps = w, h, fps
        self.frames: List[np.ndarray] = []

    def add(self, frame):
        if isinstance(frame, Image.Image):
            frame = np.array(frame.convert("RGB"))
        self.frames.append(frame)

    def _quantise(self, colors):
        out = []
        for f in self.frames:
            im = Image.fromarray(f).quantize(colors, method=Image.Quantize.MEDIANCUT)
            out.append(np.array(im.convert("RGB")))
        return out

    def save(self, path, colors=128):
        iio.imwrite(path, self._quantise(colors), duration=1000 / self.fps, loop=0)
        check_size(Path(path))
