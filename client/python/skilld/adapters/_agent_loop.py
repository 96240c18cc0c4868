"""Loop of an agent over the SDK of a model's API: requests, and the skill calls of their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ..agents import Session

# Requests for one question by default; agents need fewer than ten as a rule.
REQUESTS_MAX = 50


class TooManyRequestsError(RuntimeError):
    """Error of a loop whose model still calls tools after the last request."""

    def __init__(self, requests_max: int) -> None:
        super().__init__(f"the model still calls tools after {requests_max} requests: raise requests_max")


def run_loop(
    session: Session, provider: str, create: Callable[..., Any], body: dict[str, Any], requests_max: int
) -> Any:
    """Creates replies until one makes no skill call, or calls a tool of the caller too. Adds all to the messages."""
    for _ in range(requests_max):
        reply = create(**session.prepare({**body}, provider))
        if _has_ended(body, provider, reply, session.answer(reply, provider)):
            return reply
    raise TooManyRequestsError(requests_max)


async def arun_loop(
    session: Session, provider: str, create: Callable[..., Any], body: dict[str, Any], requests_max: int
) -> Any:
    """Does what `run_loop` does, for asyncio."""
    for _ in range(requests_max):
        reply = await create(**await session.aprepare({**body}, provider))
        if _has_ended(body, provider, reply, await session.aanswer(reply, provider)):
            return reply
    raise TooManyRequestsError(requests_max)


def _has_ended(body: dict[str, Any], provider: str, reply: Any, results: list[Any]) -> bool:
    """Adds a reply and its results to the messages of the body.

    Returns True if the reply makes no skill call, or calls a tool of the caller too.
    """
    reply = reply.model_dump(mode="json", exclude_none=True)
    if provider == "openai-responses":
        body["input"] += [*reply["output"], *results]
        calls = sum(item["type"] == "function_call" for item in reply["output"])
        return not results or len(results) < calls
    if provider == "openai":
        message = reply["choices"][0]["message"]
        body["messages"] += [message, *results]
        return not results or len(results) < len(message["tool_calls"])
    body["messages"] += [{"role": reply["role"], "content": reply["content"]}, *results]
    calls = sum(block["type"] == "tool_use" for block in reply["content"])
    return not results or len(results[0]["content"]) < calls
