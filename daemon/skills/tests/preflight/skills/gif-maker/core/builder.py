"""Collects frames and writes a GIF."""
from pathlib import Path
from typing import Optional

import imageio.v3 as imageio
import numpy as np
from PIL import Image

from .easing import ease


class GifBuilder:
    """Frames of one animation."""

    def __init__(self, width=128, height=128, fps=15):
        self.size, self.fps, self.frames = (width, height), fps, []

    def add(self, frame):
        if isinstance(frame, Image.Image):
            frame = np.array(frame.convert("RGB"))
        self.frames.append(frame)

    def save(self, path: str, colors: Optional[int] = 128):
        imageio.imwrite(Path(path), self.frames, duration=1000 / self.fps, loop=0)
