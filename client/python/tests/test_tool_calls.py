"""Calls that fail before they reach a tool."""

import asyncio
import json

import pytest
from skilld import Skills
from skilld.adapters._tool_calls import acall_tool, call_tool

MODES = {"sync": call_tool, "async": lambda *call: asyncio.run(acall_tool(*call))}


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_that_cannot_be_reached_is_an_error_for_the_model(mode, tmp_path):
    session = Skills(endpoint=f"unix:{tmp_path}/none.sock").session("chat")
    error = json.loads(MODES[mode](session, "skill_list", {}))
    assert error["status"] == "failed" and error["error"].isupper() and "none.sock" in error["message"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("arguments", [{"skill": "\ud800"}, {"skill": {1, 2}}, {"skill": float("nan")}, "{", "[1]"])
def test_arguments_that_are_no_json_object_are_an_error_for_the_model(mode, arguments, session):
    error = MODES[mode](session, "skill_load", arguments)
    assert error.isascii() and json.loads(error)["status"] == "failed", error


def test_no_arguments_are_an_empty_object(session):
    assert "python-math" in call_tool(session, "skill_list", "")
