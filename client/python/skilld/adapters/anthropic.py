"""Agent loop over the Anthropic SDK (`anthropic`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._tool_calls import REQUESTS_MAX, TooManyRequestsError, import_framework

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message


def run_messages(
    session: Any, messages: list[Any], *, client: Anthropic | None = None, requests_max: int = REQUESTS_MAX, **body: Any
) -> Message:
    """Requests messages and makes their skill calls, until one makes none. Adds everything to `messages`.

    `body` is the rest of each request, such as `model` and `max_tokens`, and `tools` of the caller. A message that calls
    these is returned too: the caller adds their results to `messages` and goes on. Raises TooManyRequestsError after
    `requests_max` requests.
    """
    client = client or import_framework("anthropic", "anthropic").Anthropic()
    for _ in range(requests_max):
        reply = client.messages.create(**session.prepare({**body, "messages": messages}))
        message = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
        results = session.answer(message)
        messages += [message, *results]
        calls = sum(block["type"] == "tool_use" for block in message["content"])
        if not results or len(results[0]["content"]) < calls:
            return reply
    raise TooManyRequestsError(requests_max)
