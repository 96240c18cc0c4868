"""Sandboxes, and runs that need none of the caller's."""

from __future__ import annotations

import os  # noqa: F401 (annotations of inputs name it)
from typing import List, Mapping, Optional, Sequence, Tuple, Union

from .._connection import ConnectionOptions, Unpack, connect
from .._requests import IDLE_TIMEOUT_MAX, Inputs, prepare_run, workspace_arguments
from .._skilld import Client, FileTransfers, new_id
from ..errors import SandboxNotFoundException
from ..results import RunResult, SandboxInfo
from .commands import AsyncCommands, AsyncPty, OutputHandler, run_to_end
from .files import AsyncFilesystem
from .storage import AsyncArtifacts, AsyncSandboxInputs, AsyncSandboxOutputs, AsyncSandboxSkills

BLOCKING = False


class AsyncSandbox:
    """Warm container of a skilld daemon, claimed for its user, with files, commands and skills.

    Used as a context manager it is killed at the end.
    """

    def __init__(self, client: Client, sandbox_id: str) -> None:
        """Is called by :meth:`create` and :meth:`connect`."""
        self._client = client
        files = FileTransfers(client)
        self.sandbox_id: str = sandbox_id
        """Id of the sandbox, for :meth:`connect`."""
        self.files = AsyncFilesystem(client, sandbox_id)
        self.commands = AsyncCommands(client, sandbox_id)
        self.pty = AsyncPty(client, sandbox_id)
        self.skills = AsyncSandboxSkills(files, sandbox_id)
        self.inputs = AsyncSandboxInputs(files, sandbox_id)
        self.outputs = AsyncSandboxOutputs(files, sandbox_id)

    def __repr__(self) -> str:
        skills = f", skills={self.skills.names!r}" if self.skills.names else ""
        return f"{type(self).__name__}({self.sandbox_id!r}{skills})"

    @classmethod
    async def create(
        cls,
        template: Optional[str] = None,
        timeout: Optional[float] = None,
        metadata: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
        *,
        skills: Sequence[str] = (),
        writable_skills: bool = False,
        limits: Optional[Mapping[str, int]] = None,
        sandbox_id: str = "",
        **connection: Unpack[ConnectionOptions],
    ) -> "AsyncSandbox":
        """Claims a sandbox and stages skills in it.

        :param template: Pool to claim from; the daemon's default pool without it.
        :param timeout: Seconds after which it is removed, unless :meth:`set_timeout` moves that, and after 24 hours
            without use. The daemon's defaults without it: 15 minutes without use, and 24 hours in all.
        :param metadata: Labels, by which :meth:`list` finds it.
        :param envs: Environment variables of all commands.
        :param skills: Skills, ``name`` or ``name@version`` each.
        :param writable_skills: ``True`` for copies of the skills that commands can write.
        :param limits: ``memory_bytes``, ``cpu_millis``, ``pids`` and ``disk_bytes``, below those of the pool.
        :param sandbox_id: Id of the sandbox; a new one without it.
        """
        client = connect(BLOCKING, connection)
        arguments = workspace_arguments(template, timeout, metadata, envs, limits)
        # A sandbox that has the caller's id may be another one, until this call has made it.
        is_own = not sandbox_id
        sandbox_id = sandbox_id or new_id()
        try:
            workspace = await client.create_workspace(sandbox_id, arguments, is_own)
            is_own = True
            box = cls(client, workspace["id"])
            if skills:
                await box.skills.stage(skills, writable_skills)
        except BaseException:
            if is_own:
                await client.discard_workspace(sandbox_id)
            raise
        return box

    @classmethod
    async def connect(
        cls, sandbox_id: str, timeout: Optional[float] = None, **connection: Unpack[ConnectionOptions]
    ) -> "AsyncSandbox":
        """Connects to a sandbox that exists."""
        client = connect(BLOCKING, connection)
        box = cls(client, sandbox_id)
        workspace = await client.get_workspace(sandbox_id)
        box.skills.add(workspace["skills"])
        if timeout is not None:
            await box.set_timeout(timeout)
        return box

    @classmethod
    async def list(
        cls, metadata: Optional[Mapping[str, str]] = None, **connection: Unpack[ConnectionOptions]
    ) -> List[SandboxInfo]:
        """Lists sandboxes, or those with all of these labels, sorted by their ids."""
        workspaces = await connect(BLOCKING, connection).list_workspaces(dict(metadata or {}))
        return [SandboxInfo._of(workspace) for workspace in workspaces]

    async def kill(self: Union["AsyncSandbox", str], **connection: Unpack[ConnectionOptions]) -> bool:
        """Removes the sandbox with everything in it. Returns ``False`` if it does not exist.

        ``box.kill()`` and ``Sandbox.kill(sandbox_id)`` are the same.
        """
        client, sandbox_id = _client_of(self, connection)
        return await client.delete_workspace(sandbox_id)

    async def set_timeout(
        self: Union["AsyncSandbox", str], timeout: float, **connection: Unpack[ConnectionOptions]
    ) -> None:
        """Removes the sandbox this many seconds from now, at most the daemon's maximum lifetime after its creation.

        It is also removed after 24 hours without use. ``box.set_timeout(60)`` and ``Sandbox.set_timeout(id, 60)`` are
        the same.
        """
        client, sandbox_id = _client_of(self, connection)
        await client.renew_workspace(sandbox_id, min(timeout, IDLE_TIMEOUT_MAX), timeout)

    async def get_info(self: Union["AsyncSandbox", str], **connection: Unpack[ConnectionOptions]) -> SandboxInfo:
        """Returns the description of the sandbox: ``box.get_info()`` or ``Sandbox.get_info(sandbox_id)``."""
        client, sandbox_id = _client_of(self, connection)
        return SandboxInfo._of(await client.get_workspace(sandbox_id))

    async def is_running(self) -> bool:
        """Returns ``True`` if the sandbox can be used."""
        try:
            return (await self._client.get_workspace(self.sandbox_id))["state"] == "READY"
        except SandboxNotFoundException:
            return False

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.delete_workspace(self.sandbox_id)

    async def run(
        self,
        cmd: Union[str, Sequence[str]],
        *,
        inputs: Optional[Inputs] = None,
        outputs: Union[str, Sequence[str], None] = None,
        skills: Union[str, Sequence[str]] = (),
        skill: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[float] = None,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
        scope: Optional[AsyncArtifacts] = None,
        save_to: Optional[AsyncArtifacts] = None,
        exec_id: str = "",
        on_cancel: str = "kill",
    ) -> RunResult:
        """Stages inputs, runs a command and collects its outputs: one call, but for inputs that are too large for it.

        :param cmd: Command of the shell, or a list of program and arguments.
        :param inputs: List of local paths, file objects and references, or a dict whose values are bytes, file objects,
            references, or a ``Path`` of a local file or folder. Relative targets begin where the command starts. For a
            skill, a bare name is put into its ``inputs/``, and other relative targets begin in ``/workspace``.
        :param outputs: Globs of the files to return, relative to ``/workspace``; ``inputs/`` is that of the skill.
        :param skills: Skills to stage first.
        :param skill: Skill in whose folder the command starts. Without it, the only one of ``skills`` or else of the
            sandbox, unless ``cwd`` is given. Empty for none: the command starts in ``/workspace``.
        :param stdin: Bytes or text for the command to read, at most 1 MiB; pass more as an input.
        :param envs: Environment variables of the command.
        :param cwd: Directory in which the command starts, relative to ``/workspace`` or to the folder of ``skill``.
        :param on_stdout: Function that gets each piece of output as it comes; ``on_stderr`` likewise.
        :param timeout: Seconds after which the command is killed; the daemon's default without it.
        :param scope: Owner of the artifacts that ``inputs`` name.
        :param save_to: Owner of artifacts, as which the outputs are also saved.
        :param exec_id: Id of the run. The same call with the same id finds its run, and never runs it twice, while the
            sandbox keeps it: for 30 minutes after its end. Later the call raises ``SkilldError`` (``ID_TAKEN``).
        :param on_cancel: ``kill`` ends the command if the caller is interrupted or a handler fails; ``leave`` does not.

        A command that prints more than 64 MiB is killed with the reason ``OUTPUT_LIMIT``.
        """
        arguments, large = prepare_run(
            cmd,
            self.skills.names,
            inputs=inputs,
            outputs=outputs,
            skills=skills,
            skill=skill,
            stdin=stdin,
            envs=envs,
            cwd=cwd,
            scope=scope,
            save_to=save_to,
            parent=self.sandbox_id,
            exec_id=exec_id,
            timeout=timeout,
        )
        for target, data in large:
            await self.inputs._upload(target, data)
        result = await run_to_end(self._client, arguments, on_stdout, on_stderr, on_cancel)
        self.skills.add(result._skills)
        return result


def _client_of(box: Union[AsyncSandbox, str], connection: ConnectionOptions) -> Tuple[Client, str]:
    """Returns the connection and the id of a sandbox, or of one that is named by its id."""
    if isinstance(box, str):
        return connect(BLOCKING, connection), box
    return box._client, box.sandbox_id


async def run(
    cmd: Union[str, Sequence[str]],
    *,
    inputs: Optional[Inputs] = None,
    outputs: Union[str, Sequence[str], None] = None,
    skills: Union[str, Sequence[str]] = (),
    skill: Optional[str] = None,
    stdin: Union[str, bytes, None] = None,
    envs: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    timeout: Optional[float] = None,
    on_stdout: Optional[OutputHandler] = None,
    on_stderr: Optional[OutputHandler] = None,
    scope: Optional[AsyncArtifacts] = None,
    save_to: Optional[AsyncArtifacts] = None,
    exec_id: str = "",
    on_cancel: str = "kill",
    template: Optional[str] = None,
    limits: Optional[Mapping[str, int]] = None,
    keep: bool = False,
    **connection: Unpack[ConnectionOptions],
) -> RunResult:
    """Claims a sandbox, stages, runs, collects and removes the sandbox, in one call to the daemon.

    The parameters are those of :meth:`AsyncSandbox.run` and :meth:`AsyncSandbox.create`. ``keep`` leaves the sandbox,
    whose id is ``sandbox_id`` of the result. Inputs that are too large for one call are sent before it.
    """
    client = connect(BLOCKING, connection)
    arguments, large = prepare_run(
        cmd,
        (),
        inputs=inputs,
        outputs=outputs,
        skills=skills,
        skill=skill,
        stdin=stdin,
        envs=envs,
        cwd=cwd,
        scope=scope,
        save_to=save_to,
        exec_id=exec_id,
        timeout=timeout,
        template=workspace_arguments(template, None, None, None, limits),
        keep=keep,
    )
    if not large:
        return await run_to_end(client, arguments, on_stdout, on_stderr, on_cancel)
    box = await AsyncSandbox.create(template, limits=limits, **connection)
    leaves = False
    try:
        for target, data in large:
            await box.inputs._upload(target, data)
        arguments.update(parent=box.sandbox_id, template=None)
        leaves = keep or on_cancel == "leave"
        result = await run_to_end(client, arguments, on_stdout, on_stderr, on_cancel)
        leaves = keep
        return result
    finally:
        if not leaves:
            await client.discard_workspace(box.sandbox_id)
