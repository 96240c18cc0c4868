"""Skill tools for Pydantic AI (`pydantic-ai`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._tool_calls import acall_tool, import_framework

if TYPE_CHECKING:
    from pydantic_ai import Tool

    from ..agents import Session


def skill_tools(session: Session) -> list[Tool]:
    """Returns the skill tools of a session for `Agent(tools=…)`."""
    pydantic_ai = import_framework("pydantic_ai", "pydantic-ai")

    def adapt(tool: Any) -> Tool:
        async def call(**arguments: Any) -> str:
            return await acall_tool(session, tool.name, arguments)

        return pydantic_ai.Tool.from_schema(call, tool.name, tool.description, tool.parameters)

    return [adapt(tool) for tool in session.tools]
