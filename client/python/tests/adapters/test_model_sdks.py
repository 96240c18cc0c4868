"""The agent loops over the SDKs of OpenAI and Anthropic, whose clients talk to a server of a scripted model."""

import asyncio
import json

import pytest
from scripted_model import CALLS, QUESTION, WORDS, one_by_one_and_at_once

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

from skilld.adapters._agent_loop import TooManyRequestsError  # noqa: E402
from skilld.adapters.anthropic import arun_messages, run_messages  # noqa: E402
from skilld.adapters.openai import arun_chat, arun_responses, run_chat, run_responses  # noqa: E402

HOST_SCHEMA = {"type": "object", "properties": {}}


class Chat:
    run, arun = staticmethod(run_chat), staticmethod(arun_chat)
    body = {"model": "gpt-5"}
    host_tool = {"type": "function", "function": {"name": "clock", "parameters": HOST_SCHEMA}}

    def words(completion):
        return completion.choices[0].message.content

    def calls(messages):
        calls = [call["function"] for message in messages for call in message.get("tool_calls", [])]
        return [(call["name"], json.loads(call["arguments"])) for call in calls]

    def host_result(completion):
        (call,) = [call for call in completion.choices[0].message.tool_calls if call.function.name == "clock"]
        return {"role": "tool", "tool_call_id": call.id, "content": "noon"}


class Responses:
    run, arun = staticmethod(run_responses), staticmethod(arun_responses)
    body = {"model": "gpt-5"}
    host_tool = {"type": "function", "name": "clock", "parameters": HOST_SCHEMA}

    def words(response):
        return response.output_text

    def calls(items):
        calls = [item for item in items if item.get("type") == "function_call"]
        return [(call["name"], json.loads(call["arguments"])) for call in calls]

    def host_result(response):
        (call,) = [item for item in response.output if item.name == "clock"]
        return {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}


class Messages:
    run, arun = staticmethod(run_messages), staticmethod(arun_messages)
    body = {"model": "claude-sonnet-5", "max_tokens": 4096}
    host_tool = {"name": "clock", "input_schema": HOST_SCHEMA}

    def words(message):
        return message.content[0].text

    def calls(messages):
        lists = [message["content"] for message in messages if isinstance(message["content"], list)]
        return [(block["name"], block["input"]) for blocks in lists for block in blocks if block["type"] == "tool_use"]

    def host_result(message):
        (call,) = [block for block in message.content if block.name == "clock"]
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "noon"}]}


pytestmark = [pytest.mark.parametrize("api", [Chat, Responses, Messages]), pytest.mark.usefixtures("server")]


@one_by_one_and_at_once
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_model_calls_tools_and_gets_their_results(prompt_session, model, server, api, mode):
    conversation = [{"role": "user", "content": QUESTION}]
    if mode == "sync":
        reply = api.run(prompt_session, conversation, **api.body)
    else:
        reply = asyncio.run(api.arun(prompt_session, conversation, **api.body))
    assert api.words(reply) == WORDS
    assert api.calls(conversation) == CALLS
    model.check_results(server.bodies[-1])
    assert model.tools == {tool.name: tool.parameters for tool in prompt_session.tools}
    assert len(server.bodies) == (2 if model.at_once else len(CALLS) + 1)
    assert all(body.items() >= api.body.items() for body in server.bodies)


@one_by_one_and_at_once
def test_calls_of_the_hosts_tools_are_left_to_the_host(prompt_session, model, server, api):
    model.calls = [CALLS[0], ("clock", {}), *CALLS[1:]]
    body = {**api.body, "tools": [api.host_tool]}
    conversation = [{"role": "user", "content": QUESTION}]
    conversation.append(api.host_result(api.run(prompt_session, conversation, **body)))
    assert api.words(api.run(prompt_session, conversation, **body)) == WORDS
    assert api.calls(conversation) == model.calls
    # The host adds its result after those of the skill tools.
    assert model.results.pop(3 if model.at_once else 1) == "noon"
    model.check_results(server.bodies[-1])


def test_a_model_that_never_stops_is_stopped(prompt_session, model, server, api):
    model.calls = CALLS * 10
    question = [{"role": "user", "content": QUESTION}]
    with pytest.raises(TooManyRequestsError, match="after 4 requests"):
        api.run(prompt_session, question[:], requests_max=4, **api.body)
    with pytest.raises(TooManyRequestsError, match="after 5 requests"):
        asyncio.run(api.arun(prompt_session, question[:], requests_max=5, **api.body))
    assert len(server.bodies) == 9
