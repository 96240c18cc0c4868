"""The tools of every family in the form of every framework."""

import importlib
import uuid

import pytest
from skilld import Skills

FRAMEWORKS = {"agents": "openai_agents", "langchain_core": "langchain"}
OPTIONS = [
    {"profile": "workspace"},
    {"profile": "knowledge_only"},
    {"family": "sherma", "additions": True},
    {"family": "agent-zero"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("module", ["agents", "langchain_core", "pydantic_ai", "smolagents"])
def test_a_framework_takes_the_tools_of_every_family(module, options):
    pytest.importorskip(module)
    adapter = importlib.import_module(f"skilld.adapters.{FRAMEWORKS.get(module, module)}")
    session = Skills(inline_skills=True, **options).session(uuid.uuid4().hex)
    names = [tool.name for tool in session.tools]
    assert names and [tool.name for tool in adapter.skill_tools(session)] == names
