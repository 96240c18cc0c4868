"""Skills, inputs and outputs of a sandbox, and artifacts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

from .._connection import ConnectionOptions, Unpack, connect
from .._requests import Inputs, LocalPath, PackedInput, data_of, read_inputs, read_outputs, workspace_path
from .._skilld import FileTransfers
from ..results import ArtifactInfo, Collected, DownloadedPaths

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

BLOCKING = False


class AsyncArtifacts:
    """Artifacts of one owner: named bytes with versions, which outlive sandboxes."""

    def __init__(
        self,
        app: str = "python",
        user: str = "default",
        session: str = "default",
        *,
        prefix: str = "",
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        """Names the owner. ``prefix`` begins the names of outputs that a run saves with ``save_to``."""
        self.prefix = prefix
        self._scope = {"app": app, "user": user, "session": session}
        self._files = FileTransfers(connect(BLOCKING, connection))

    async def save(self, name: str, data: Any, mime_type: str = "") -> ArtifactInfo:
        """Saves bytes, text or what a file object has as the next version."""
        return ArtifactInfo._of(await self._files.save_artifact(name, self._scope, data_of(data), mime_type))

    async def save_from(self, sandbox: "AsyncSandbox", path: str, name: Optional[str] = None) -> ArtifactInfo:
        """Saves a file of a sandbox as the next version; its bytes stay with the daemon."""
        name = name or os.path.basename(path)
        answer = await self._files.save_artifact_from(name, self._scope, sandbox.sandbox_id, workspace_path(path))
        return ArtifactInfo._of(answer)

    async def load(self, name: str, version: Optional[int] = None) -> bytes:
        """Returns the bytes of a version, or of the newest one."""
        return await self._files.load_artifact(name, self._scope, version)

    async def list(self, name: Optional[str] = None) -> List[ArtifactInfo]:
        """Lists the newest version of each artifact, or all versions of one."""
        return [ArtifactInfo._of(answer) for answer in await self._files.list_artifacts(self._scope, name)]

    async def delete(self, name: str, version: Optional[int] = None) -> bool:
        """Deletes a version, or all of an artifact. Returns ``False`` if it does not exist."""
        return await self._files.delete_artifact(name, self._scope, version)


class AsyncSandboxSkills:
    """Skills of a sandbox."""

    def __init__(self, files: FileTransfers, sandbox_id: str) -> None:
        self._files, self._sandbox_id = files, sandbox_id
        self.names: List[str] = []
        """Names of the sandbox's skills that this object knows."""

    async def stage(self, skills: Union[str, Sequence[str]], writable: bool = False) -> List[str]:
        """Stages skills, ``name`` or ``name@version`` each, and returns their directories."""
        skills = [skills] if isinstance(skills, str) else list(skills)
        staged = await self._files.stage_skills(self._sandbox_id, skills, writable)
        self.add([skill["name"] for skill in staged])
        return [skill["path"] for skill in staged]

    def add(self, names: Sequence[str]) -> None:
        """Adds skills that the sandbox has; stages nothing."""
        self.names += [name for name in names if name not in self.names]


class AsyncSandboxInputs:
    """Inputs of a sandbox."""

    def __init__(self, files: FileTransfers, sandbox_id: str) -> None:
        self._files, self._sandbox_id = files, sandbox_id

    async def stage(self, inputs: Inputs, scope: Optional[AsyncArtifacts] = None, for_skill: bool = False) -> List[str]:
        """Stages inputs as a run does, and returns their paths. ``scope`` owns the artifacts that they name."""
        inline, large = read_inputs(inputs, for_skill)
        paths = [await self._upload(target, data) for target, data in large]
        if inline:
            owner = None if scope is None else scope._scope
            paths += [staged["path"] for staged in await self._files.stage_inputs(self._sandbox_id, inline, owner)]
        return paths

    async def _upload(self, target: str, data: PackedInput) -> str:
        """Sends an input that is too large for a call."""
        send = self._files.upload_path if isinstance(data, LocalPath) else self._files.upload_bytes
        arguments = (str(data), target) if isinstance(data, LocalPath) else (target, data)
        path, _ = await send(self._sandbox_id, *arguments)
        return path or target


class AsyncSandboxOutputs:
    """Outputs of a sandbox."""

    def __init__(self, files: FileTransfers, sandbox_id: str) -> None:
        self._files, self._sandbox_id = files, sandbox_id

    async def collect(
        self, globs: Union[str, Sequence[str]] = "out/**", save_to: Optional[AsyncArtifacts] = None
    ) -> Collected:
        """Returns the files that match. Globs are relative to ``/workspace``."""
        files, summary = await self._files.collect(self._sandbox_id, read_outputs(globs, save_to))
        return Collected(files, summary)

    async def download(
        self, directory: Union[str, "os.PathLike[str]"], globs: Union[str, Sequence[str]] = "out/**"
    ) -> DownloadedPaths:
        """Writes the files that match beneath a local directory, and returns their paths.

        The result is a list, whose ``skipped`` and ``unmatched`` say what was left out.
        """
        selection = {**(read_outputs(globs) or {}), "max_files": 50_000, "max_file_bytes": 4 << 30}
        selection["max_total_bytes"] = 16 << 30
        paths, skipped, summary = await self._files.collect_to(self._sandbox_id, selection, os.fspath(directory))
        return DownloadedPaths([str(path) for path in paths], skipped + summary["skipped"], summary["unmatched"])


