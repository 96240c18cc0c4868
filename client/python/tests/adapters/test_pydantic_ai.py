"""The adapter for Pydantic AI, with its function model."""

import asyncio

import pytest
from scripted_model import CALLS, QUESTION, WORDS, one_by_one_and_at_once

pydantic_ai = pytest.importorskip("pydantic_ai")

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from skilld.adapters.pydantic_ai import skill_tools  # noqa: E402


@one_by_one_and_at_once
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_model_calls_tools_and_gets_their_results(session, model, mode):
    def reply(messages, info):
        parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        tools = {tool.name: tool.parameters_json_schema for tool in info.function_tools}
        calls, words = model.reply(tools, [part.content for part in parts])
        calls = [ToolCallPart(name, step, call_id) for call_id, name, step in calls]
        return ModelResponse(calls or [TextPart(words)])

    agent = pydantic_ai.Agent(FunctionModel(reply), tools=skill_tools(session))
    result = agent.run_sync(QUESTION) if mode == "sync" else asyncio.run(agent.run(QUESTION))
    assert result.output == WORDS
    assert sorted(session.calls, key=CALLS.index) == CALLS
    model.check_results()
    assert model.tools == {tool.name: tool.parameters for tool in session.tools}
