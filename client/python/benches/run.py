"""Measures `box.run("true")`: the time of each run, and the time of as many by 64 threads; and a command that writes a
file, without and with collecting it. Prints JSON.

    python benches/run.py unix:/run/skilld/skilld.sock [RUNS]
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Callable, List

import skilld

THREADS = 64
SANDBOXES = 4
"""A sandbox runs at most 32 commands at once."""
WARM_UP = 20


def measure(endpoint: str, runs: int) -> dict:
    with skilld.Sandbox.create(endpoint=endpoint) as box:
        durations = measure_durations(lambda: box.run("true"), runs)
        report = "out/report.txt"
        write_durations = measure_durations(lambda: box.run(f"echo done > {report}"), runs)
        collect = partial(box.run, f"echo done > {report}", outputs=[report])
        collect_durations = measure_durations(lambda: collect().files[report], runs)
    boxes = [skilld.Sandbox.create(endpoint=endpoint) for _ in range(SANDBOXES)]
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            # Each thread uses one sandbox. If it took the next one each time, more runs than a sandbox permits could be
            # in one at once.
            def run_share(thread: int, total: int) -> None:
                for _ in range(thread, total, THREADS):
                    boxes[thread % SANDBOXES].run("true")

            list(pool.map(lambda thread: run_share(thread, THREADS), range(THREADS)))
            start = time.perf_counter_ns()
            list(pool.map(lambda thread: run_share(thread, runs), range(THREADS)))
            elapsed = time.perf_counter_ns() - start
    finally:
        for box in boxes:
            box.kill()
    return {
        "run_ns": durations,
        "threads_ns": elapsed,
        "write_ns": write_durations,
        "collect_ns": collect_durations,
    }


def measure_durations(call: Callable[[], object], runs: int) -> List[int]:
    durations = []
    for number in range(WARM_UP + runs):
        start = time.perf_counter_ns()
        call()
        if number >= WARM_UP:
            durations.append(time.perf_counter_ns() - start)
    return durations


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500)))
