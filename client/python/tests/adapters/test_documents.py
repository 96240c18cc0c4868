"""The samples of the section "Frameworks" in docs/python.md, with a server in place of the models' APIs."""

import re
from pathlib import Path

import pytest
from scripted_model import CALLS, WORDS

DOCUMENTS = Path(__file__).parents[4] / "docs"
PACKAGES = {
    "OpenAI SDK": "openai",
    "Anthropic SDK": "anthropic",
    "OpenAI Agents SDK": "agents",
    "LangChain and LangGraph": "langchain_openai",
    "Pydantic AI": "pydantic_ai",
    "smolagents": "smolagents",
}


def read_samples():
    """Returns the title and the code of each sample."""
    text = (DOCUMENTS / "python.md").read_text()
    section = re.search(r"^## Frameworks$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
    for subsection in section.split("\n### ")[1:]:
        for code in re.findall(r"^```python\n(.*?)^```", subsection, re.M | re.S):
            yield subsection.split("\n", 1)[0], code


SAMPLES = list(read_samples())


def test_each_framework_has_a_sample():
    assert sorted({title for title, _ in SAMPLES}) == sorted(PACKAGES)


@pytest.mark.parametrize(("title", "code"), SAMPLES, ids=[title for title, _ in SAMPLES])
def test_a_sample_prints_the_models_answer(title, code, model, server, capsys):
    pytest.importorskip(PACKAGES[title])
    exec(compile(code, title, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == f"{WORDS}\n"
    model.check_results(server.bodies[-1])
    assert len(server.bodies) == len(CALLS) + 1
