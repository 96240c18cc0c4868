"""The adapter for the OpenAI Agents SDK, with a model of its own kind."""

import asyncio
import json

import pytest
from scripted_model import CALLS, QUESTION, WORDS, ScriptedModel, one_by_one_and_at_once

agents = pytest.importorskip("agents")

from agents.models.interface import Model  # noqa: E402
from openai.types.responses import (  # noqa: E402
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from skilld.adapters.openai_agents import skill_tools  # noqa: E402


class AgentsModel(Model):
    """Lets a scripted model answer. Arguments that are text are written as they are."""

    def __init__(self, model):
        self.model = model

    async def get_response(self, system_instructions, input, model_settings, tools, *_, **__):
        items = [] if isinstance(input, str) else input
        results = [item["output"] for item in items if item.get("type") == "function_call_output"]
        calls, words = self.model.reply({tool.name: tool.params_json_schema for tool in tools}, results)
        output = [
            ResponseFunctionToolCall(type="function_call", call_id=call_id, name=name, arguments=text)
            for call_id, name, step in calls
            for text in [step if isinstance(step, str) else json.dumps(step)]
        ]
        if words:
            content = [ResponseOutputText(type="output_text", text=words, annotations=[])]
            output = [
                ResponseOutputMessage(type="message", id="msg_1", role="assistant", status="completed", content=content)
            ]
        return agents.ModelResponse(output=output, usage=agents.Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


def ask(session, model):
    agent = agents.Agent("Assistant", model=AgentsModel(model), tools=skill_tools(session))
    return asyncio.run(agents.Runner.run(agent, QUESTION)).final_output


@one_by_one_and_at_once
def test_the_model_calls_tools_and_gets_their_results(session, model):
    assert ask(session, model) == WORDS
    calls = [(name, json.loads(arguments)) for name, arguments in session.calls]
    assert sorted(calls, key=CALLS.index) == CALLS
    model.check_results()
    assert model.tools == {tool.name: tool.parameters for tool in session.tools}


@pytest.mark.parametrize("arguments", ["{", "[1]"])
def test_arguments_that_are_no_object_are_an_error_for_the_model(session, arguments):
    model = ScriptedModel([("skill_run", arguments), *CALLS])
    assert ask(session, model) == WORDS
    assert json.loads(model.results[0])["error"] == "INVALID_ARGUMENTS"
    assert session.calls[0] == ("skill_run", arguments)
