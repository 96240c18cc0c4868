"""Agent loops over the OpenAI SDK (`openai`): Chat Completions and Responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._agent_loop import REQUESTS_MAX, arun_loop, run_loop
from ._tool_calls import import_framework

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    from ..agents import Session


def run_chat(
    session: Session,
    messages: list[Any],
    *,
    client: OpenAI | None = None,
    requests_max: int = REQUESTS_MAX,
    **body: Any,
) -> ChatCompletion:
    """Requests chat completions and makes their skill calls, until one makes none. Adds everything to `messages`.

    `body` is the rest of each request, such as `model`, and `tools` of the caller. A completion that calls these is
    returned too: the caller adds their results to `messages` and goes on. Raises TooManyRequestsError after
    `requests_max` requests.
    """
    client = client or import_framework("openai", "openai").OpenAI()
    body["messages"] = messages
    return run_loop(session, "openai", client.chat.completions.create, body, requests_max)


async def arun_chat(
    session: Session,
    messages: list[Any],
    *,
    client: AsyncOpenAI | None = None,
    requests_max: int = REQUESTS_MAX,
    **body: Any,
) -> ChatCompletion:
    """Does what `run_chat` does, for asyncio."""
    client = client or import_framework("openai", "openai").AsyncOpenAI()
    body["messages"] = messages
    return await arun_loop(session, "openai", client.chat.completions.create, body, requests_max)


def run_responses(
    session: Session, items: list[Any], *, client: OpenAI | None = None, requests_max: int = REQUESTS_MAX, **body: Any
) -> Response:
    """Requests responses like `run_chat`. Adds everything to `items`, which is their `input`."""
    client = client or import_framework("openai", "openai").OpenAI()
    body["input"] = items
    return run_loop(session, "openai-responses", client.responses.create, body, requests_max)


async def arun_responses(
    session: Session,
    items: list[Any],
    *,
    client: AsyncOpenAI | None = None,
    requests_max: int = REQUESTS_MAX,
    **body: Any,
) -> Response:
    """Does what `run_responses` does, for asyncio."""
    client = client or import_framework("openai", "openai").AsyncOpenAI()
    body["input"] = items
    return await arun_loop(session, "openai-responses", client.responses.create, body, requests_max)
