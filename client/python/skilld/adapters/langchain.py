"""Skill tools for LangChain and LangGraph (`langchain`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._tool_calls import acall_tool, call_tool, import_framework

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from ..agents import Session


def skill_tools(session: Session) -> list[BaseTool]:
    """Returns the skill tools of a session for `create_agent(tools=…)` and `bind_tools`."""
    tools = import_framework("langchain_core.tools", "langchain")

    class SkillTool(tools.BaseTool):
        def _run(self, /, **arguments: Any) -> str:
            return call_tool(session, self.name, arguments)

        async def _arun(self, /, **arguments: Any) -> str:
            return await acall_tool(session, self.name, arguments)

    return [
        SkillTool(name=tool.name, description=tool.description, args_schema=tool.parameters) for tool in session.tools
    ]
