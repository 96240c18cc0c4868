"""Skill tools for smolagents (`smolagents`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._tool_calls import call_tool, import_framework

if TYPE_CHECKING:
    from smolagents import Tool

    from ..agents import Session


def skill_tools(session: Session) -> list[Tool]:
    """Returns the skill tools of a session for `ToolCallingAgent(tools=…)` and `CodeAgent(tools=…)`."""
    smolagents = import_framework("smolagents", "smolagents")

    class SkillTool(smolagents.Tool):
        name, description, inputs, output_type = "skill_tool", "", {}, "string"
        skip_forward_signature_validation = True

        def __init__(self, tool: Any) -> None:
            self.name, self.description = tool.name, tool.description
            self.inputs = _list_inputs(tool.parameters)
            super().__init__()

        def forward(self, *values: Any, **arguments: Any) -> str:
            # The code that a CodeAgent's model writes may give arguments by position.
            return call_tool(session, self.name, {**dict(zip(self.inputs, values)), **arguments})

    return [SkillTool(tool) for tool in session.tools]


def _list_inputs(parameters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns a tool's arguments as smolagents declares them, the required ones first."""
    required = parameters.get("required", [])
    properties = sorted(parameters.get("properties", {}).items(), key=lambda item: item[0] not in required)
    return {
        name: {"type": "any", "description": "", **schema, **({} if name in required else {"nullable": True})}
        for name, schema in properties
    }
