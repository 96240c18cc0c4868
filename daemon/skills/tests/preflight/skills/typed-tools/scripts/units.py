from __future__ import annotations

import os
import sys
import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from pandas import DataFrame

if typing.TYPE_CHECKING:
    import torch

if sys.platform == "win32":
    import msvcrt
    import colorama
else:
    import termios
    import tty

if os.name == "nt":
    import winreg


def frame(values: Iterable[float]) -> "DataFrame":
    import math
    return math.fsum(values)


print(float(sys.argv[1]) * {"km": 1.0}.get(sys.argv[2], 1.0), sys.argv[3])
