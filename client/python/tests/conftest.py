"""Fixtures. The tests run against the daemon of SKILLD_ENDPOINT and the installed package."""

import os
import time
import uuid
from pathlib import Path
from typing import Callable

import pytest

import skilld

REPOSITORY = Path(__file__).parents[3]


def pytest_configure() -> None:
    assert os.environ.get("SKILLD_ENDPOINT"), "SKILLD_ENDPOINT names the daemon of the tests"


@pytest.fixture(scope="module")
def box():
    with skilld.Sandbox.create(metadata={"suite": "python"}) as box:
        yield box


@pytest.fixture
def session():
    """A session whose results contain the text of skills."""
    with skilld.Skills(inline_skills=True).session(uuid.uuid4().hex) as session:
        yield session


@pytest.fixture
def table() -> Path:
    return REPOSITORY / "tests/data/sales.csv"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.05)


def is_listed(sandbox_id: str) -> bool:
    return sandbox_id in [info.sandbox_id for info in skilld.Sandbox.list()]


def wait_until_gone(sandbox_id: str) -> None:
    """Waits until a sandbox is gone: the end of a run does not wait for the removal of its container."""
    wait_until(lambda: not is_listed(sandbox_id), f"{sandbox_id} is left")
