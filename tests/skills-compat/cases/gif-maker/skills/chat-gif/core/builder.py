"""Frames of an animation, and the file that holds them."""

from pathlib import Path

import imageio.v3 as imageio
import numpy
from PIL import Image, ImageDraw


class GifBuilder:
    def __init__(self, size, fps):
        self.size, self.fps, self.frames = size, fps, []

    def new_frame(self, background):
        """Adds a frame, and returns it with its pen."""
        frame = Image.new("RGB", (self.size, self.size), background)
        self.frames.append(frame)
        return frame, ImageDraw.Draw(frame)

    def save(self, path):
        frames = numpy.stack([numpy.asarray(frame) for frame in self.frames])
        imageio.imwrite(path, frames, extension=".gif", duration=1000 / self.fps, loop=0)
        print(f"{len(frames)} frames, {Path(path).stat().st_size} bytes")
