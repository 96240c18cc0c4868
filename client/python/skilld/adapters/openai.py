"""Agent loops over the OpenAI SDK (`openai`): Chat Completions and Responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._tool_calls import REQUESTS_MAX, TooManyRequestsError, import_framework

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response


def run_chat(
    session: Any, messages: list[Any], *, client: OpenAI | None = None, requests_max: int = REQUESTS_MAX, **body: Any
) -> ChatCompletion:
    """Requests chat completions and makes their skill calls, until one makes none. Adds everything to `messages`.

    `body` is the rest of each request, such as `model`, and `tools` of the caller. A completion that calls these is
    returned too: the caller adds their results to `messages` and goes on. Raises TooManyRequestsError after
    `requests_max` requests.
    """
    client = client or import_framework("openai", "openai").OpenAI()
    for _ in range(requests_max):
        completion = client.chat.completions.create(**session.prepare({**body, "messages": messages}))
        message = completion.choices[0].message.model_dump(exclude_none=True)
        results = session.answer(message)
        messages += [message, *results]
        if not results or len(results) < len(message["tool_calls"]):
            return completion
    raise TooManyRequestsError(requests_max)


def run_responses(
    session: Any, items: list[Any], *, client: OpenAI | None = None, requests_max: int = REQUESTS_MAX, **body: Any
) -> Response:
    """Requests responses like `run_chat`. Adds everything to `items`, which is their `input`."""
    client = client or import_framework("openai", "openai").OpenAI()
    for _ in range(requests_max):
        response = client.responses.create(**session.prepare({**body, "input": items}))
        output = [item.model_dump(exclude_none=True) for item in response.output]
        results = session.answer(output)
        items += [*output, *results]
        if not results or len(results) < sum(item["type"] == "function_call" for item in output):
            return response
    raise TooManyRequestsError(requests_max)
