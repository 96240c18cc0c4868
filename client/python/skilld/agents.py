"""Skills for agents: tools for a model, prompts and state of conversations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Type, Union

from ._connection import ConnectionOptions, connect
from ._skilld import FileTransfers, Toolset, ToolSession
from .errors import _invalid
from .results import SkillInfo

if TYPE_CHECKING:
    import os

_CONNECTION = frozenset(ConnectionOptions.__annotations__)


@dataclass(frozen=True)
class Tool:
    """Tool to offer a model."""

    name: str
    description: str
    parameters: Dict[str, Any] = field(repr=False)
    """JSON Schema of the arguments, an object."""


def _plain(value: Any, depth: int = 128) -> Any:
    """Returns JSON for objects of the SDKs of OpenAI and Anthropic, which have at most so many levels."""
    if depth < 0:
        raise _invalid("the body contains itself, or has more than 128 levels")
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item, depth - 1) for key, item in value.items()}
    return value


def _provider_of_body(body: Mapping[str, Any]) -> str:
    """Guesses the API of a request: what only one of them has decides."""
    if "input" in body:
        return "openai-responses"
    tools = body.get("tools") or [{}]
    is_anthropic = "system" in body or "anthropic_version" in body or "input_schema" in tools[0]
    return "anthropic" if is_anthropic or str(body.get("model", "")).startswith("claude") else "openai"


def _message(provider: str, reply: Any) -> Any:
    """Returns the assistant's message of a whole response, or the message itself."""
    reply = _plain(reply)
    if provider == "openai" and isinstance(reply, dict) and reply.get("choices"):
        return reply["choices"][0]["message"]
    return reply


class Session:
    """Conversation with skills. Methods that begin with ``a`` do the same for asyncio."""

    def __init__(self, native: ToolSession, name: str, provider: Optional[str]) -> None:
        self._native, self.name, self._provider = native, name, provider

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def sandbox_id(self) -> str:
        """Id of the sandbox in which the commands run, for :meth:`Sandbox.connect`. It exists once a tool needed it."""
        return self._native.workspace_id

    @property
    def tools(self) -> List[Tool]:
        """Tools to offer the model now. Loading a skill may add some."""
        return [_tool(tool) for tool in self._native.tools(True)]

    def call(self, name: str, arguments: Union[Mapping[str, Any], str], call_id: str = "") -> str:
        """Makes one call and returns the text for the model: the result, or the error if it fails.

        A call that is repeated with the same ``call_id`` runs nothing twice.
        """
        return self._native.call(True, name, _arguments(arguments), call_id)

    async def acall(self, name: str, arguments: Union[Mapping[str, Any], str], call_id: str = "") -> str:
        """Same as :meth:`call`, for asyncio."""
        return await self._native.call(False, name, _arguments(arguments), call_id)

    def prepare(self, body: Dict[str, Any], provider: Optional[str] = None) -> Dict[str, Any]:
        """Adds skills and tools to a request's body, and returns it.

        ``provider`` is ``openai``, ``openai-responses`` or ``anthropic``; without it the body decides. Call it before
        each request.
        """
        return _replace(body, self._native.prepare(True, self._api(body, provider), _plain(body)))

    async def aprepare(self, body: Dict[str, Any], provider: Optional[str] = None) -> Dict[str, Any]:
        """Same as :meth:`prepare`, for asyncio."""
        return _replace(body, await self._native.prepare(False, self._api(body, provider), _plain(body)))

    def answer(self, reply: Any, provider: Optional[str] = None) -> List[Dict[str, Any]]:
        """Makes the calls of a reply and returns the messages that answer them; empty if it makes none.

        ``reply`` is the response or its message, as a dict or as an object of the provider's SDK. The API is that of
        the last :meth:`prepare`.
        """
        provider = provider or self._provider or "openai"
        return self._native.answer(True, provider, _message(provider, reply))

    async def aanswer(self, reply: Any, provider: Optional[str] = None) -> List[Dict[str, Any]]:
        """Same as :meth:`answer`, for asyncio."""
        provider = provider or self._provider or "openai"
        return await self._native.answer(False, provider, _message(provider, reply))

    def preload(self, skills: Sequence[Union[str, Mapping[str, Any]]]) -> List[str]:
        """Loads skills for the next turn, and returns the names of those that had to make room."""
        return self._native.preload(True, list(skills))

    @property
    def state(self) -> Dict[str, Any]:
        """State of the conversation as JSON, for a host that stores it. Setting it restores it."""
        return self._native.state(True)

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self._native.restore(True, dict(state))

    def end(self) -> None:
        """Ends the conversation: its sandbox is removed."""
        self._native.end(True)

    async def aend(self) -> None:
        """Same as :meth:`end`, for asyncio."""
        await self._native.end(False)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aend()

    def _api(self, body: Mapping[str, Any], provider: Optional[str]) -> str:
        self._provider = provider or self._provider or _provider_of_body(body)
        return self._provider


class AsyncSession(Session):
    """Conversation with skills for asyncio: its methods are awaited. ``tools`` and ``state`` are not."""

    call = Session.acall  # type: ignore[assignment]
    prepare = Session.aprepare  # type: ignore[assignment]
    answer = Session.aanswer  # type: ignore[assignment]
    end = Session.aend  # type: ignore[assignment]

    async def preload(self, skills: Sequence[Union[str, Mapping[str, Any]]]) -> List[str]:  # type: ignore[override]
        """Loads skills for the next turn, and returns the names of those that had to make room."""
        return await self._native.preload(False, list(skills))

    def __enter__(self) -> "AsyncSession":
        raise TypeError("an AsyncSession is ended by `async with`, not by `with`")

    async def __aenter__(self) -> "AsyncSession":
        return self


class Skills:
    """Skills of a daemon: its catalogue, and conversations of agents."""

    _session: Type[Session] = Session
    _blocking = True

    def __init__(self, **options: Any) -> None:
        """Takes options of the connection (``endpoint``, ``token`` and so on) and of the tools.

        The latter are those of the Rust library: ``family`` (``trpc``, ``sherma``, ``agent-zero``), ``profile``
        (``full``, ``workspace``, ``knowledge_only``), ``skills``, ``env``, ``timeout``, ``load_mode`` and so on.
        """
        connection = {name: options.pop(name) for name in list(options) if name in _CONNECTION}
        client = connect(self._blocking, connection)  # type: ignore[arg-type]
        self._toolset, self._files = Toolset(client, options), FileTransfers(client)

    def list(self) -> List[SkillInfo]:
        """Lists the skills, sorted by their names."""
        return [SkillInfo._of(skill) for skill in self._files.list_skills()]

    def get(self, name: str) -> SkillInfo:
        """Returns a skill with the text of its SKILL.md, by ``name`` or ``name@version``."""
        return SkillInfo._of(self._files.get_skill(name))

    def publish(self, path: Union[str, "os.PathLike[str]"], name: str = "") -> SkillInfo:
        """Publishes a local folder or archive as a version of a skill."""
        return SkillInfo._of(self._files.publish_skill(path, name))

    def session(
        self,
        name: str,
        *,
        app: str = "skilld",
        user: str = "default",
        agent: str = "",
        sandbox_id: str = "",
        provider: Optional[str] = None,
    ) -> Session:
        """Starts or continues the conversation with this name. The same names lead to the same sandbox.

        With ``sandbox_id`` it works in that one, which it leaves; a token for it is enough.
        """
        if provider not in (None, "openai", "openai-responses", "anthropic"):
            raise _invalid(f"unknown provider {provider!r}: openai, openai-responses or anthropic")
        return self._session(self._toolset.session(app, user, name, agent, sandbox_id), name, provider)


class AsyncSkills(Skills):
    """Skills of a daemon for asyncio: its catalogue and its conversations are awaited."""

    _session = AsyncSession
    _blocking = False

    async def list(self) -> List[SkillInfo]:  # type: ignore[override]
        """Lists the skills, sorted by their names."""
        return [SkillInfo._of(skill) for skill in await self._files.list_skills()]

    async def get(self, name: str) -> SkillInfo:  # type: ignore[override]
        """Returns a skill with the text of its SKILL.md, by ``name`` or ``name@version``."""
        return SkillInfo._of(await self._files.get_skill(name))

    async def publish(  # type: ignore[override]
        self, path: Union[str, "os.PathLike[str]"], name: str = ""
    ) -> SkillInfo:
        """Publishes a local folder or archive as a version of a skill."""
        return SkillInfo._of(await self._files.publish_skill(path, name))

    if TYPE_CHECKING:

        def session(
            self,
            name: str,
            *,
            app: str = "skilld",
            user: str = "default",
            agent: str = "",
            sandbox_id: str = "",
            provider: Optional[str] = None,
        ) -> AsyncSession: ...


def _tool(tool: Mapping[str, Any]) -> Tool:
    return Tool(tool["name"], tool["description"], tool["parameters"])


def _arguments(arguments: Union[Mapping[str, Any], str]) -> Any:
    return arguments if isinstance(arguments, str) else dict(arguments)


def _replace(body: Dict[str, Any], prepared: Dict[str, Any]) -> Dict[str, Any]:
    body.clear()
    body.update(prepared)
    return body
