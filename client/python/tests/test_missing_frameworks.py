"""The adapters without their frameworks."""

import importlib
import subprocess
import sys

import pytest

ADAPTERS = {
    "anthropic": ("run_messages", "anthropic", "anthropic"),
    "langchain": ("skill_tools", "langchain_core", "langchain"),
    "openai": ("run_chat", "openai", "openai"),
    "openai_agents": ("skill_tools", "agents", "openai-agents"),
    "pydantic_ai": ("skill_tools", "pydantic_ai", "pydantic-ai"),
    "smolagents": ("skill_tools", "smolagents", "smolagents"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_framework_is_named_with_its_package(name, session, monkeypatch):
    function, module, package = ADAPTERS[name]
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [MissingModule(module), *sys.meta_path])
    adapter = importlib.import_module(f"skilld.adapters.{name}")
    arguments = [] if function == "skill_tools" else [[]]
    with pytest.raises(ImportError, match=f'failed to import {module}.*"pip install {package}"'):
        getattr(adapter, function)(session, *arguments)


class MissingModule:
    """Finder that says of one module that it does not exist."""

    def __init__(self, module):
        self.module = module

    def find_spec(self, name, *_):
        if name == self.module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_importing_the_adapters_imports_no_framework(tmp_path):
    names = ", ".join(f"skilld.adapters.{name}" for name in ADAPTERS)
    modules = {module for _, module, _ in ADAPTERS.values()}
    code = f"import sys, {names}; assert not {modules!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
