"""Skills for agents: a scripted model for each API."""

import asyncio
import json

import pytest

import skilld

COMMAND = {"skill": "python-math", "command": "python scripts/python_math.py fib 100"}
FIB = "354224848179261915075"


def openai_reply(name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def responses_reply(name, arguments):
    call = {"type": "function_call", "call_id": f"call-{name}", "name": name, "arguments": json.dumps(arguments)}
    return {"output": [call]}


def anthropic_reply(name, arguments):
    call = {"type": "tool_use", "id": f"call-{name}", "name": name, "input": arguments}
    return {"role": "assistant", "content": [call]}


APIS = [
    ("openai", openai_reply, {"messages": [{"role": "user", "content": "fib"}]}, lambda tool: tool["function"]["name"]),
    ("openai-responses", responses_reply, {"input": [{"role": "user", "content": "fib"}]}, lambda tool: tool["name"]),
    (
        "anthropic",
        anthropic_reply,
        {"system": "be brief", "messages": [{"role": "user", "content": "fib"}]},
        lambda tool: tool["name"],
    ),
]


@pytest.mark.parametrize(("provider", "reply", "body", "name"), APIS, ids=[api[0] for api in APIS])
def test_model_loads_and_runs_a_skill(provider, reply, body, name):
    with skilld.Skills().session(f"model-{provider}") as session:
        prepared = session.prepare({"model": "script", **body})
        assert "skill_run" in [name(tool) for tool in prepared["tools"]]
        assert "python-math" in json.dumps(prepared)
        [loaded] = session.answer(reply("skill_load", {"skill": "python-math"}))
        assert "loaded: python-math" in json.dumps(loaded)
        assert any("python-math" in str(value) for value in session.state.values())
        [result] = session.answer(reply("skill_run", COMMAND))
        assert FIB in json.dumps(result)
        final = {"output": []} if provider == "openai-responses" else {"role": "assistant", "content": "done"}
        assert session.answer(final) == []
        sandbox_id = session.sandbox_id
        assert skilld.Sandbox.connect(sandbox_id).is_running()
    with pytest.raises(skilld.SandboxNotFoundException):
        skilld.Sandbox.connect(sandbox_id)


def test_tools_are_called_one_by_one():
    with skilld.Skills().session("single") as session:
        tools = {tool.name: tool for tool in session.tools}
        assert tools["skill_run"].parameters["type"] == "object"
        assert tools["skill_run"].description
        # Without a prompt, the result has the skill's text.
        assert "python_math.py" in session.call("skill_load", {"skill": "python-math"})
        assert FIB in session.call("skill_run", COMMAND)
        assert json.loads(session.call("skill_run", {"skill": "none", "command": "x"}))["status"] == "failed"
        assert json.loads(session.call("no_tool", {}))["error"] == "UNKNOWN_TOOL"


def test_tools_are_called_by_asyncio():
    async def main():
        async with skilld.AsyncSkills().session("several") as session:
            assert FIB in await session.call("skill_run", COMMAND)
            return await session.acall("skill_run", COMMAND)

    assert FIB in asyncio.run(main())


def test_state_is_stored_and_restored():
    skills = skilld.Skills(load_mode="session")
    first = skills.session("stored")
    first.call("skill_load", {"skill": "python-math"})
    stored = json.loads(json.dumps(first.state))
    other = skills.session("stored")
    other.state = stored
    assert other.state == stored != {}
    first.end()


@pytest.mark.parametrize(
    ("options", "tool"),
    [
        ({"family": "trpc"}, "skill_load"),
        ({"family": "trpc", "profile": "workspace"}, "workspace_exec"),
        ({"family": "sherma"}, "load_skill_md"),
        ({"family": "agent-zero"}, "skills_tool"),
    ],
)
def test_each_family_has_its_tools(options, tool):
    assert tool in [offered.name for offered in skilld.Skills(**options).session("family").tools]


def test_wrong_options_are_named():
    with pytest.raises(skilld.InvalidArgumentException, match="famly"):
        skilld.Skills(famly="trpc")
    with pytest.raises(skilld.InvalidArgumentException, match="gemini"):
        skilld.Skills().session("x", provider="gemini")


def test_body_that_is_not_json_is_refused():
    with pytest.raises(skilld.InvalidArgumentException, match="body"):
        skilld.Skills().session("odd").prepare({"messages": object()})


def test_catalogue_is_listed_and_published_to(tmp_path):
    skills = skilld.Skills()
    assert "csv-report" in [skill.name for skill in skills.list()]
    assert "csv_report.py" in skills.get("csv-report").body
    folder = tmp_path / "python-greeting"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: python-greeting\ndescription: Greets.\n---\nSay hello.\n")
    published = skills.publish(folder)
    assert (published.name, published.usable) == ("python-greeting", True)
    assert "Say hello." in skills.get("python-greeting").body


def test_state_may_be_read_before_tools_are_called():
    with skilld.Skills().session("state-first") as session:
        session.preload(["text-stats"])
        before = session.state
        assert before != {}
        # Without a prompt, the result has the skill's text.
        assert "python_math.py" in session.call("skill_load", {"skill": "python-math"})
        assert set(before) <= set(session.state)


def nest(depth):
    value = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


def test_values_that_contain_themselves_are_refused():
    circle = {}
    circle["self"] = [circle]
    session = skilld.Skills().session("circle")
    for value in (circle, nest(100_000)):
        for call in (
            lambda: session.call("skill_load", value),
            lambda: session.prepare({"messages": [value]}),
            lambda: session.answer(value),
            lambda: skilld.Skills(env=value),
            lambda: setattr(session, "state", value),
        ):
            with pytest.raises(skilld.InvalidArgumentException, match="contains itself"):
                call()
    assert session.prepare({"messages": [], "metadata": nest(50)})["metadata"] == nest(50)


def test_catalogue_for_asyncio_is_awaited():
    async def main():
        skills = skilld.AsyncSkills()
        names = [skill.name for skill in await skills.list()]
        return names, (await skills.get("csv-report")).name

    names, name = asyncio.run(main())
    assert name in names


def test_session_for_asyncio_refuses_a_plain_block():
    with pytest.raises(TypeError, match="async with"), skilld.AsyncSkills().session("wrong"):
        pass
