"""Sessions for the adapters' tests: of the daemon at SKILLD_ENDPOINT, or a fake without one."""

import os

import pytest
from fake_session import FakeSession
from scripted_model import ModelServer, ScriptedModel

# The frameworks send no traces of the tests to their makers.
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", HF_HUB_OFFLINE="1")


class RecordingSession:
    """Passes everything on to a session and keeps the calls of tools."""

    def __init__(self, session):
        self.session, self.calls = session, []

    def __getattr__(self, name):
        return getattr(self.session, name)

    def call(self, name, arguments):
        self.calls.append((name, arguments))
        return self.session.call(name, arguments)

    async def acall(self, name, arguments):
        self.calls.append((name, arguments))
        return await self.session.acall(name, arguments)


@pytest.fixture
def open_session():
    """Opens a session: `with open_session("chat-42") as session`."""
    if "SKILLD_ENDPOINT" not in os.environ:
        return lambda _name: FakeSession()
    from skilld import Skills

    return Skills().session


@pytest.fixture
def session(open_session, request):
    with open_session(request.node.name) as session:
        yield RecordingSession(session)


@pytest.fixture
def model(request):
    return ScriptedModel(at_once=getattr(request, "param", False))


@pytest.fixture
def server(model, monkeypatch):
    """Starts the server of the scripted model, which the clients of OpenAI and Anthropic find in the environment."""
    with ModelServer(model) as server:
        for name, value in [
            ("OPENAI_BASE_URL", f"{server.url}/v1"),
            ("OPENAI_API_KEY", "none"),
            ("ANTHROPIC_BASE_URL", server.url),
            ("ANTHROPIC_API_KEY", "none"),
        ]:
            monkeypatch.setenv(name, value)
        yield server
