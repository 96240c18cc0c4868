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

    def prepare(self, body):
        """Adds the tools in the format of the API that the body is for."""
        definitions = [vars(tool) for tool in self.tools]
        if "input" in body:
            offered = [{"type": "function", **tool} for tool in definitions]
        elif "max_tokens" in body:
            offered = [{**tool, "input_schema": tool["parameters"]} for tool in definitions]
        else:
            offered = [{"type": "function", "function": tool} for tool in definitions]
        return {**body, "tools": [*body.get("tools", []), *offered]}

    def answer(self, reply):
        """Makes the calls of these tools, and answers in the format of the reply."""
        if isinstance(reply, list):
            calls = [item for item in reply if item["type"] == "function_call"]
            results = [(call["call_id"], self._result(call["name"], call["arguments"])) for call in calls]
            return [{"type": "function_call_output", "call_id": at, "output": out} for at, out in results if out]
        if isinstance(reply.get("content"), list):
            calls = [block for block in reply["content"] if block["type"] == "tool_use"]
            results = [(call["id"], self._result(call["name"], json.dumps(call["input"]))) for call in calls]
            blocks = [{"type": "tool_result", "tool_use_id": at, "content": out} for at, out in results if out]
            return [{"role": "user", "content": blocks}] if blocks else []
        calls = [(call["id"], call["function"]) for call in reply.get("tool_calls", [])]
        results = [(at, self._result(call["name"], call["arguments"])) for at, call in calls]
        return [{"role": "tool", "tool_call_id": at, "content": out} for at, out in results if out]

    def _result(self, name, arguments):
        """Returns the result of a call, or None if the tool is the host's."""
        if name not in [tool.name for tool in self.tools]:
            return None
        try:
            return self.call(name, json.loads(arguments))
        except FakeError as error:
            return json.dumps({"error": error.reason, "message": str(error), "status": "failed"})
