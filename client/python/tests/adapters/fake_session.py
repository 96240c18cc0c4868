"""A session of skill tools without a daemon, of the shape of the package's own."""

import asyncio
import json
from dataclasses import dataclass

from scripted_model import COMMAND, SKILL


@dataclass
class FakeTool:
    name: str
    description: str
    parameters: dict


class FakeError(Exception):
    reason = "UNKNOWN_SKILL"


def text(description):
    return {"type": "string", "description": description}


class FakeSession:
    """Knows one skill and two tools, and keeps the calls."""

    def __init__(self):
        self.calls = []
        skill = text("Name of the skill.")
        run = {"timeout": {"type": "integer", "description": "Seconds."}, "skill": skill, "command": text("For bash.")}
        self.tools = [
            FakeTool("skill_load", "Loads a skill.", {"type": "object", "properties": {"skill": skill}}),
            FakeTool("skill_run", "Runs a command of a skill.", {"type": "object", "properties": run}),
        ]
        self.tools[0].parameters["required"] = ["skill"]
        self.tools[1].parameters["required"] = ["skill", "command"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def call(self, name, arguments):
        self.calls.append((name, arguments))
        if arguments["skill"] != SKILL:
            raise FakeError(f"unknown skill: {arguments['skill']}")
        if name == "skill_load":
            return json.dumps({"loaded": SKILL, "content": f"# {SKILL}"})
        assert arguments["command"] == COMMAND
        return json.dumps({"stdout": "354224848179261915075\n", "stderr": "", "exit_code": 0})

    async def acall(self, name, arguments):
        await asyncio.sleep(0)
        return self.call(name, arguments)
