"""Commands and terminals of a sandbox."""

from __future__ import annotations

import codecs
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
    overload,
)

from .._requests import command_timeout, data_of, run_arguments
from .._skilld import Client, RunStream, new_id
from ..errors import NotFoundException, SkilldError
from ..results import CommandResult, ProcessInfo, PtySize, RunResult

OutputHandler = Callable[[str], Union[None, Awaitable[None]]]
PtyHandler = Callable[[bytes], Union[None, Awaitable[None]]]
Piece = Tuple[Optional[str], Optional[str], Optional[bytes]]

BLOCKING = False

async def emit(handler: Optional[Callable[[Any], Any]], piece: Any) -> None:
    """Calls a handler, which may be a coroutine function for asyncio."""
    if handler is not None and piece:
        answer = handler(piece)
        if hasattr(answer, "__await__"):
            if BLOCKING:
                raise TypeError("a handler returned an awaitable: coroutine functions are for asyncio")
            await answer


class AsyncCommandHandle:
    """Command that runs. Iterating yields ``(stdout, stderr, pty)`` of which one is set."""

    def __init__(
        self,
        client: Client,
        stream: RunStream,
        pid: int,
        is_pty: bool = False,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
    ) -> None:
        self._client, self._is_pty = client, is_pty
        self._stream: Optional[RunStream] = stream
        self._handlers = (on_stdout, on_stderr)
        self._name = stream.name
        self._pid = pid
        self._received = 0
        self._pieces: Tuple[List[bytes], List[bytes]] = ([], [])
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = (decoder("replace"), decoder("replace"))
        self._answer: Optional[Mapping[str, Any]] = None

    @property
    def pid(self) -> int:
        """Process id in the sandbox; 0 if the command could not be started."""
        return self._pid

    @property
    def exec_id(self) -> str:
        """Id of the command, by which it can be found again."""
        return self._name.partition("/")[2]

    @property
    def stdout(self) -> str:
        """Standard output so far."""
        return b"".join(self._pieces[0]).decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return b"".join(self._pieces[1]).decode("utf-8", "replace")

    @property
    def exit_code(self) -> Optional[int]:
        """Exit code; ``None`` until the output was read to its end."""
        return None if self._answer is None else CommandResult(self._answer).exit_code

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self._pid}, exec_id={self.exec_id!r}, exit_code={self.exit_code})"

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._next_piece()
        await emit(self._handlers[0], piece[0])
        await emit(self._handlers[1], piece[1])
        return piece

    async def _next_piece(self) -> Piece:
        while self._answer is None and self._stream is not None:
            piece = await self._stream.next(self._received)
            if piece is None:
                self._answer = await self._stream.result()
                break
            self._received += 1
            if self._is_pty:
                return None, None, piece[1]
            index = 1 if piece[0] == "stderr" else 0
            self._pieces[index].append(piece[1])
            text = self._decoders[index].decode(piece[1])
            if text:
                return (None, text, None) if index else (text, None, None)
        for index in (0, 1):
            # An incomplete character at the end.
            text = "" if self._is_pty else self._decoders[index].decode(b"", True)
            if text:
                return (None, text, None) if index else (text, None, None)
        raise StopAsyncIteration

    async def _finish(
        self, on_pty: Optional[PtyHandler], on_stdout: Optional[OutputHandler], on_stderr: Optional[OutputHandler]
    ) -> Mapping[str, Any]:
        async for stdout, stderr, pty in self:
            await emit(on_stdout, stdout)
            await emit(on_stderr, stderr)
            await emit(on_pty, pty)
        if self._answer is None:
            raise SkilldError("disconnected: use commands.connect(exec_id)", reason="DISCONNECTED")
        return self._answer

    async def wait(
        self,
        on_pty: Optional[PtyHandler] = None,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
    ) -> CommandResult:
        """Waits for the end of the command.

        Raises :class:`CommandExitException` for another exit code than 0, and :class:`TimeoutException` for a command
        that was killed for its timeout. The command goes on if the caller is interrupted.
        """
        answer = await self._finish(on_pty, on_stdout, on_stderr)
        return CommandResult(answer, b"".join(self._pieces[0]), b"".join(self._pieces[1])).check()

    async def kill(self) -> bool:
        """Kills the command with everything that it started. Returns ``False`` if it does not exist."""
        return await self._client.kill_exec(self._name)

    async def send_stdin(self, data: Union[str, bytes]) -> None:
        """Writes to the command's stdin, for a command that was started with ``stdin=True``."""
        await self._client.write_stdin(self._name, data_of(data), False)

    async def close_stdin(self) -> None:
        """Ends the command's stdin."""
        await self._client.write_stdin(self._name, b"", True)

    async def disconnect(self) -> None:
        """Stops reading. The command goes on, and :meth:`Commands.connect` finds it."""
        self._stream = None


class _AsyncExecs:
    """Base class of commands and terminals."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client, self._sandbox_id = client, sandbox_id

    async def _name(self, pid: Union[int, str], running: bool = True) -> str:
        """Returns the name of a command by its id, or by its pid, which an ended one may have had too."""
        if isinstance(pid, str):
            return f"{self._sandbox_id}/{pid}"
        for exec in reversed(await self._client.list_execs(self._sandbox_id)):
            if exec["pid"] == pid and (exec["state"] == "RUNNING" or not running):
                return f"{self._sandbox_id}/{exec['id']}"
        raise NotFoundException(f"no command with pid {pid} in {self._sandbox_id}", reason="EXEC_NOT_FOUND")

    async def _open(
        self, arguments: dict, on_stdout: Optional[OutputHandler] = None, on_stderr: Optional[OutputHandler] = None
    ) -> AsyncCommandHandle:
        stream = self._client.open_run(arguments)
        try:
            pid = await stream.started()
        except BaseException:
            await stream.cancel()
            raise
        return AsyncCommandHandle(self._client, stream, pid, arguments["terminal"] is not None, on_stdout, on_stderr)

    async def kill(self, pid: Union[int, str]) -> bool:
        """Kills a command by its pid or id. Returns ``False`` if it does not exist."""
        try:
            name = await self._name(pid)
        except NotFoundException:
            return False
        return await self._client.kill_exec(name)

    async def send_stdin(self, pid: Union[int, str], data: Union[str, bytes]) -> None:
        """Writes to the stdin of a command, by its pid or id."""
        await self._client.write_stdin(await self._name(pid), data_of(data), False)

    async def connect(
        self, pid: Union[int, str], stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncCommandHandle:
        """Reads the output of a command, by its pid or id, from these offsets on."""
        name = await self._name(pid, running=False)
        exec = await self._client.get_exec(name)
        stream = self._client.attach(name, stdout_offset, stderr_offset)
        return AsyncCommandHandle(self._client, stream, exec["pid"], exec["has_terminal"])


class AsyncCommands(_AsyncExecs):
    """Commands of a sandbox."""

    @overload
    async def run(
        self,
        cmd: Union[str, Sequence[str]],
        background: Literal[False] = False,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
        stdin: bool = False,
        timeout: Optional[float] = 60,
        on_cancel: str = "kill",
    ) -> CommandResult: ...
    @overload
    async def run(
        self,
        cmd: Union[str, Sequence[str]],
        background: Literal[True],
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
        stdin: bool = False,
        timeout: Optional[float] = 60,
        on_cancel: str = "kill",
    ) -> AsyncCommandHandle: ...
    async def run(
        self,
        cmd: Union[str, Sequence[str]],
        background: bool = False,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
        stdin: bool = False,
        timeout: Optional[float] = 60,
        on_cancel: str = "kill",
    ) -> Any:
        """Runs a command and returns its :class:`CommandResult`, or with ``background`` a :class:`CommandHandle`.

        A string is a command of the shell; a list is a program and its arguments. It starts in ``/workspace``. Another
        exit code than 0 raises :class:`CommandExitException`. ``timeout`` is in seconds, also in the background, and 0
        means the daemon's maximum. A command that prints more than 64 MiB is killed. If the caller is interrupted, the
        command is killed, or left with ``on_cancel="leave"``. Handlers of a command in the background are called
        while its handle is waited for or iterated.
        """
        arguments = run_arguments(
            cmd,
            parent=self._sandbox_id,
            exec_id=new_id(),
            env=dict(envs or {}),
            cwd=cwd or "",
            open_stdin=stdin,
            timeout=command_timeout(timeout),
        )
        if background:
            return await self._open(arguments, on_stdout, on_stderr)
        return (await run_to_end(self._client, arguments, on_stdout, on_stderr, on_cancel)).check()

    async def list(self, all: bool = False) -> List[ProcessInfo]:
        """Lists the commands that run, with ``all`` also those that ended, in the order of their start."""
        execs = [ProcessInfo._of(exec) for exec in await self._client.list_execs(self._sandbox_id)]
        return [exec for exec in execs if all or exec.is_running]

    async def close_stdin(self, pid: Union[int, str]) -> None:
        """Ends the stdin of a command, by its pid or id."""
        await self._client.write_stdin(await self._name(pid), b"", True)


class AsyncPty(_AsyncExecs):
    """Terminals of a sandbox."""

    async def create(
        self,
        size: PtySize = PtySize(24, 80),
        cwd: Optional[str] = None,
        envs: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = 60,
    ) -> AsyncCommandHandle:
        """Starts a shell in a terminal. Its output is the third part of what its handle yields, and is not retained:
        ``stdout`` stays empty.

        It is killed after ``timeout`` seconds; 0 means the daemon's maximum.
        """
        arguments = run_arguments(
            ["bash", "-i"],
            parent=self._sandbox_id,
            exec_id=new_id(),
            env=dict(envs or {}),
            cwd=cwd or "",
            open_stdin=True,
            terminal=(size.rows, size.cols),
            output_bytes=0,
            timeout=command_timeout(timeout),
        )
        return await self._open(arguments)

    async def resize(self, pid: Union[int, str], size: PtySize) -> None:
        """Sets the size of a terminal, by its pid or id."""
        await self._client.resize_terminal(await self._name(pid), size.rows, size.cols)


async def run_to_end(
    client: Client,
    arguments: dict,
    on_stdout: Optional[OutputHandler] = None,
    on_stderr: Optional[OutputHandler] = None,
    on_cancel: str = "kill",
) -> RunResult:
    """Runs a command to its end. Without handlers this is one call of the native part."""
    if on_cancel not in ("kill", "leave"):
        raise ValueError(f"on_cancel is {on_cancel!r}: kill or leave")
    stream = client.open_run(arguments)
    try:
        if on_stdout is None and on_stderr is None:
            return RunResult(await stream.result())
        handle = AsyncCommandHandle(client, stream, 0, False, on_stdout, on_stderr)
        answer = await handle._finish(None, None, None)
        return RunResult(answer, b"".join(handle._pieces[0]), b"".join(handle._pieces[1]))
    except BaseException:
        # Ends a run that goes on: after an interruption, and after an error of a handler.
        if on_cancel == "kill":
            await stream.cancel()
        raise
