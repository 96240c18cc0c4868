"""Sessions of skills for the adapters' tests, which need a daemon at SKILLD_ENDPOINT, and scripted models."""

import os
import uuid

import pytest
from scripted_model import ModelServer, ScriptedModel
from skilld import Skills


def forbid_skip(report):
    """Turns a skip into a failure, unless the environment says that some frameworks are missing."""
    if report.skipped and not hasattr(report, "wasxfail") and "SKILLD_SOME_FRAMEWORKS" not in os.environ:
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}; set SKILLD_SOME_FRAMEWORKS=1 to permit that"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    forbid_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    outcome = yield
    forbid_skip(outcome.get_result())


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
def session():
    """A session whose results contain the text of skills."""
    with Skills(inline_skills=True).session(uuid.uuid4().hex) as session:
        yield RecordingSession(session)


@pytest.fixture
def prompt_session():
    """A session whose prompts contain the text of skills."""
    with Skills().session(uuid.uuid4().hex) as session:
        yield session


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
