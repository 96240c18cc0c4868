"""Measures the container runtime of trpc-agent-py: a command that writes a file, and the same with the file collected.
Prints JSON.

    python tests/bench/trpc_container.py IMAGE RUNS
"""

import asyncio
import json
import sys
import time

from trpc_agent_sdk.code_executors import WorkspaceRunProgramSpec
from trpc_agent_sdk.code_executors.container import ContainerConfig, create_container_workspace_runtime

WARM_UP = 3


async def measure(image: str, runs: int) -> dict:
    runtime = create_container_workspace_runtime(ContainerConfig(image=image))
    workspace = await runtime.manager().create_workspace("bench")
    command = WorkspaceRunProgramSpec(cmd="bash", args=["-c", "echo done > out/report.txt"])
    took = {"write_ns": [], "collect_ns": []}
    for number in range(WARM_UP + runs):
        for name, collects in (("write_ns", False), ("collect_ns", True)):
            start = time.perf_counter_ns()
            ran = await runtime.runner().run_program(workspace, command)
            files = await runtime.fs().collect(workspace, ["out/report.txt"]) if collects else []
            elapsed = time.perf_counter_ns() - start
            assert ran.exit_code == 0 and [file.content for file in files] == ["done\n"] * collects, ran
            if number >= WARM_UP:
                took[name].append(elapsed)
    return took


if __name__ == "__main__":
    # The package logs to stdout.
    print("\n" + json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
