#!/usr/bin/env python3
"""Plot a hyperfine export."""
import json
import statistics
import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def main() -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        plt = None
    results = json.load(open(sys.argv[1]))["results"]
    if plt is None:
        for result in results:
            print(result["command"], statistics.mean(result["times"]))
        return
    figure, axes = plt.subplots()
    cast("Axes", axes).boxplot([result["times"] for result in results])
    figure.savefig("bench.png")


main()
