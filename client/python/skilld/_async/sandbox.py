"""Sandboxes, and runs that need none of the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Union

from .._connection import ConnectionOptions, connect
from .._requests import Inputs, data_of, read_inputs, read_outputs, run_arguments, skill_folder, workspace_arguments
from .._skilld import Client, Files, new_id
from ..errors import SandboxNotFoundException, _invalid
from ..results import RunResult, SandboxInfo
from .commands import AsyncCommands, AsyncPty, OutputHandler, delete_quietly, run_to_end
from .files import AsyncFilesystem
from .storage import AsyncArtifacts, AsyncSandboxInputs, AsyncSandboxOutputs, AsyncSandboxSkills

if TYPE_CHECKING:
    from typing_extensions import Unpack

BLOCKING = False


class AsyncSandbox:
    """Warm container of a skilld daemon, claimed for its user, with files, commands and skills.

    Used as a context manager it is killed at the end.
    """

    def __init__(self, client: Client, sandbox_id: str) -> None:
        """Is called by :meth:`create` and :meth:`connect`."""
        self._client = client
        files = Files(client)
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
        :param timeout: Seconds after which it is removed, unless :meth:`set_timeout` moves that. The daemon's defaults
            without it: a time without use, and a maximum lifetime.
        :param metadata: Labels, by which :meth:`list` finds it.
        :param envs: Environment variables of all commands.
        :param skills: Skills, ``name`` or ``name@version`` each.
        :param writable_skills: ``True`` for copies of the skills that commands can write.
        :param limits: ``memory_bytes``, ``cpu_millis``, ``pids`` and ``disk_bytes``, below those of the pool.
        :param sandbox_id: Id of the sandbox; a new one without it.
        """
        client = connect(BLOCKING, connection)
        arguments = workspace_arguments(template, timeout, metadata, envs, limits)
        sandbox_id = sandbox_id or new_id()
        try:
            workspace = await client.create_workspace(sandbox_id, arguments)
            box = cls(client, workspace["id"])
            if skills:
                await box.skills.stage(skills, writable_skills)
        except BaseException as error:
            # A taken id belongs to another sandbox.
            if getattr(error, "reason", None) != "ID_TAKEN":
                await delete_quietly(client, sandbox_id)
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
        if isinstance(self, str):
            return await connect(BLOCKING, connection).delete_workspace(self)
        return await self._client.delete_workspace(self.sandbox_id)

    async def set_timeout(self, timeout: float) -> None:
        """Removes the sandbox this many seconds from now, at most the daemon's maximum lifetime after its creation."""
        await self._client.renew_workspace(self.sandbox_id, timeout, timeout)

    async def get_info(self) -> SandboxInfo:
        """Returns the description of the sandbox."""
        return SandboxInfo._of(await self._client.get_workspace(self.sandbox_id))

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
        skills: Sequence[str] = (),
        skill: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[float] = None,
        on_stdout: Optional[OutputHandler] = None,
        on_stderr: Optional[OutputHandler] = None,
        save_to: Optional[AsyncArtifacts] = None,
        exec_id: str = "",
        on_cancel: str = "kill",
    ) -> RunResult:
        """Stages inputs, runs a command and collects its outputs, in one call to the daemon.

        :param cmd: Command of the shell, or a list of program and arguments.
        :param inputs: Local paths, file objects or references, or a dict of targets and contents. Relative targets
            begin where the command starts; for a skill, a bare name is put into its ``inputs/``.
        :param outputs: Globs of the files to return, relative to ``/workspace``.
        :param skills: Skills to stage first.
        :param skill: Skill in whose folder the command starts; the only one of the sandbox without it. Empty for none:
            the command starts in ``/workspace``.
        :param stdin: Bytes or text for the command to read; larger than 1 MiB as an input.
        :param timeout: Seconds after which the command is killed; the daemon's default without it.
        :param save_to: Owner of artifacts, as which the outputs are also saved.
        :param exec_id: Id of the run. The same call with the same id finds its run, and never runs it twice.
        :param on_cancel: ``kill`` or ``leave``: what happens to the command if the caller is interrupted.
        """
        if skill is None:
            names = [skill_folder(name) for name in skills] or self.skills.names
            skill = names[0] if len(names) == 1 and cwd is None else ""
        skill = skill_folder(skill)
        inline, large = read_inputs(inputs, bool(skill))
        for target, data in large:
            await self.inputs._upload(target, data)
        arguments = run_arguments(
            cmd,
            parent=self.sandbox_id,
            exec_id=exec_id or new_id(),
            skill=skill,
            cwd=cwd or "",
            env=dict(envs or {}),
            stdin=None if stdin is None else data_of(stdin),
            timeout=timeout,
            skills=list(skills),
            inputs=inline,
            outputs=read_outputs(outputs, save_to),
        )
        result = await run_to_end(self._client, arguments, on_stdout, on_stderr, on_cancel)
        self.skills.add([skill_folder(name) for name in skills])
        return result


async def run(
    cmd: Union[str, Sequence[str]],
    *,
    inputs: Optional[Inputs] = None,
    outputs: Union[str, Sequence[str], None] = None,
    skills: Sequence[str] = (),
    skill: Optional[str] = None,
    stdin: Union[str, bytes, None] = None,
    envs: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    timeout: Optional[float] = None,
    on_stdout: Optional[OutputHandler] = None,
    on_stderr: Optional[OutputHandler] = None,
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
    if skill is None:
        skill = skill_folder(skills[0]) if len(skills) == 1 and cwd is None else ""
    inline, large = read_inputs(inputs, bool(skill))
    client = connect(BLOCKING, connection)
    arguments = run_arguments(
        cmd,
        exec_id=exec_id or new_id(),
        skill=skill_folder(skill),
        cwd=cwd or "",
        env=dict(envs or {}),
        stdin=None if stdin is None else data_of(stdin),
        timeout=timeout,
        skills=list(skills),
        inputs=inline,
        outputs=read_outputs(outputs, save_to),
        template=workspace_arguments(template, None, None, None, limits),
        keep=keep,
    )
    if not large:
        return await run_to_end(client, arguments, on_stdout, on_stderr, on_cancel)
    if exec_id:
        raise _invalid("inputs that are too large for one call cannot be repeated by exec_id: use a Sandbox")
    box = await AsyncSandbox.create(template, limits=limits, sandbox_id=arguments["exec_id"], **connection)
    try:
        for target, data in large:
            await box.inputs._upload(target, data)
        arguments.update(parent=box.sandbox_id, template=None)
        return await run_to_end(client, arguments, on_stdout, on_stderr, on_cancel)
    finally:
        if not keep:
            await delete_quietly(client, box.sandbox_id)
