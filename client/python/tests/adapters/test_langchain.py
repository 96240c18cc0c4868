"""The adapter for LangChain, with a chat model of its own kind."""

import asyncio

import pytest
from scripted_model import CALLS, QUESTION, WORDS, one_by_one_and_at_once

pytest.importorskip("langchain")

from langchain.agents import create_agent  # noqa: E402
from langchain_core.language_models import BaseChatModel  # noqa: E402
from langchain_core.messages import AIMessage, ToolMessage  # noqa: E402
from langchain_core.outputs import ChatGeneration, ChatResult  # noqa: E402
from langchain_core.utils.function_calling import convert_to_openai_tool  # noqa: E402

from skilld.adapters.langchain import skill_tools  # noqa: E402


class LangChainModel(BaseChatModel):
    """Lets a scripted model answer."""

    script: object
    definitions: dict = {}

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        functions = [convert_to_openai_tool(tool)["function"] for tool in tools]
        definitions = {function["name"]: function["parameters"] for function in functions}
        return self.model_copy(update={"definitions": definitions})

    def _generate(self, messages, *_, **__):
        results = [message.text for message in messages if isinstance(message, ToolMessage)]
        calls, words = self.script.reply(self.definitions, results)
        calls = [{"id": call_id, "name": name, "args": step} for call_id, name, step in calls]
        message = AIMessage(words or "", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


@one_by_one_and_at_once
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_model_calls_tools_and_gets_their_results(session, model, mode):
    agent = create_agent(LangChainModel(script=model), skill_tools(session))
    messages = {"messages": [{"role": "user", "content": QUESTION}]}
    result = agent.invoke(messages) if mode == "sync" else asyncio.run(agent.ainvoke(messages))
    assert result["messages"][-1].text == WORDS
    assert sorted(session.calls, key=CALLS.index) == CALLS
    model.check_results()
    for tool in session.tools:
        assert model.tools[tool.name]["properties"] == tool.parameters["properties"]
        assert model.tools[tool.name].get("required") == tool.parameters.get("required")


def test_arguments_may_have_the_names_of_langchains_own(session):
    (tool,) = [tool for tool in skill_tools(session) if tool.name == "skill_run"]
    arguments = {"config": "a", "run_manager": "b", "self": "c", "callbacks": "d", **dict([CALLS[1]])["skill_run"]}
    assert "UNKNOWN_SKILL" in tool.invoke(arguments)
    assert session.calls == [(tool.name, arguments)]
