"""The adapter for smolagents, with a model of its own kind."""

import pytest
from scripted_model import CALLS, QUESTION, WORDS

smolagents = pytest.importorskip("smolagents")

from smolagents.models import (  # noqa: E402
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
    get_tool_json_schema,
)

from skilld.adapters.smolagents import skill_tools  # noqa: E402

# By position, as the models of code agents write some of their calls.
PROGRAMS = ["print({}({}))".format(name, ", ".join(map(repr, arguments.values()))) for name, arguments in CALLS]


class SmolModel(Model):
    """Lets a scripted model answer, with code if it is given no tools."""

    def __init__(self, script):
        super().__init__()
        self.script = script

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **_):
        definitions = [get_tool_json_schema(tool)["function"] for tool in tools_to_call_from or []]
        texts = [block["text"] for message in messages for block in message.content]
        results = [text for text in texts if text.startswith(("Observation:", "Error:"))]
        calls, words = self.script.reply({tool["name"]: tool["parameters"] for tool in definitions}, results)
        if tools_to_call_from is None:
            code = PROGRAMS[len(results)] if calls else f"final_answer({words!r})"
            return ChatMessage(MessageRole.ASSISTANT, f"<code>\n{code}\n</code>")
        ((call_id, name, step),) = calls or [("call_end", "final_answer", {"answer": words})]
        call = ChatMessageToolCall(ChatMessageToolCallFunction(step, name), call_id, "function")
        return ChatMessage(MessageRole.ASSISTANT, "", tool_calls=[call])


@pytest.mark.parametrize("kind", ["ToolCallingAgent", "CodeAgent"])
def test_the_model_calls_tools_and_gets_their_results(session, model, kind):
    agent = getattr(smolagents, kind)(skill_tools(session), SmolModel(model), verbosity_level=0)
    assert agent.run(QUESTION) == WORDS
    assert session.calls == CALLS
    model.check_results()


def test_only_required_arguments_are_required(session, model):
    agent = smolagents.ToolCallingAgent(skill_tools(session), SmolModel(model), verbosity_level=0)
    agent.run(QUESTION)
    for tool in session.tools:
        offered = model.tools[tool.name]
        assert set(offered["properties"]) == set(tool.parameters["properties"])
        assert sorted(offered["required"]) == sorted(tool.parameters.get("required", []))
        for name, schema in tool.parameters["properties"].items():
            assert schema.items() <= offered["properties"][name].items()
