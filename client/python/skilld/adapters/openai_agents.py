"""Skill tools for the OpenAI Agents SDK (`openai-agents`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._tool_calls import acall_tool, import_framework

if TYPE_CHECKING:
    from agents import FunctionTool

    from ..agents import Session


def skill_tools(session: Session) -> list[FunctionTool]:
    """Returns the skill tools of a session for `Agent(tools=…)`."""
    agents = import_framework("agents", "openai-agents")

    def adapt(tool: Any) -> FunctionTool:
        async def invoke(_context: Any, arguments: str) -> str:
            return await acall_tool(session, tool.name, arguments)

        # Strict schemas require every argument, and optional ones are left out here.
        return agents.FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.parameters,
            on_invoke_tool=invoke,
            strict_json_schema=False,
        )

    return [adapt(tool) for tool in session.tools]
