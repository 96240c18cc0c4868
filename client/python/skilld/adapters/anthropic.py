"""Agent loop over the Anthropic SDK (`anthropic`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._agent_loop import REQUESTS_MAX, arun_loop, run_loop
from ._tool_calls import import_framework

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.types import Message

    from ..agents import Session


def run_messages(
    session: Session,
    messages: list[Any],
    *,
    client: Anthropic | None = None,
    requests_max: int = REQUESTS_MAX,
    **body: Any,
) -> Message:
    """Requests messages and makes their skill calls, until one makes none. Adds everything to `messages`.

    `body` is the rest of each request, such as `model` and `max_tokens`, and `tools` of the caller. A message that
    calls these is returned too: the caller adds their results to `messages` and goes on. Raises TooManyRequestsError
    after `requests_max` requests.
    """
    client = client or import_framework("anthropic", "anthropic").Anthropic()
    body["messages"] = messages
    return run_loop(session, "anthropic", client.messages.create, body, requests_max)


async def arun_messages(
    session: Session,
    messages: list[Any],
    *,
    client: AsyncAnthropic | None = None,
    requests_max: int = REQUESTS_MAX,
    **body: Any,
) -> Message:
    """Does what `run_messages` does, for asyncio."""
    client = client or import_framework("anthropic", "anthropic").AsyncAnthropic()
    body["messages"] = messages
    return await arun_loop(session, "anthropic", client.messages.create, body, requests_max)
