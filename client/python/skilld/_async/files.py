"""Files of a sandbox."""

from __future__ import annotations

import os
from typing import IO, Any, AsyncIterator, List, Literal, Mapping, Sequence, Union, overload

from .._requests import WORKSPACE, data_of, run_arguments, text_of, workspace_path
from .._skilld import Client, FileStream, FileTransfers, new_id
from ..errors import FileNotFoundException, SkilldError, _invalid
from ..results import CommandResult, EntryInfo, WriteInfo

Path = Union[str, "os.PathLike[str]"]
Data = Union[str, bytes, bytearray, memoryview, IO[bytes], IO[str], "os.PathLike[str]"]


class AsyncFileReader:
    """Content of a file, piece by piece. Used as a context manager it is closed at the end."""

    def __init__(self, stream: FileStream) -> None:
        self._stream, self._received = stream, 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._stream.next(self._received)
        if piece is None:
            raise StopAsyncIteration
        self._received += 1
        return piece

    async def __aenter__(self) -> "AsyncFileReader":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the transfer; no piece comes after it."""
        await self._stream.close()


class AsyncFilesystem:
    """Files of a sandbox. Relative paths begin in ``/workspace``, where commands start."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client, self._sandbox_id = client, sandbox_id
        self._files = FileTransfers(client)

    @overload
    async def read(self, path: Path, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: Path, format: Literal["bytes"]) -> bytes: ...
    @overload
    async def read(self, path: Path, format: Literal["stream"]) -> AsyncFileReader: ...
    async def read(self, path: Path, format: str = "text") -> Any:
        """Returns the content of a file: ``text``, ``bytes``, or a ``stream`` of its pieces."""
        if format not in ("text", "bytes", "stream"):
            raise ValueError(f"format is {format!r}: text, bytes or stream")
        target = workspace_path(path)
        if format == "stream":
            return AsyncFileReader(await self._files.open(self._sandbox_id, target))
        data: bytes = await self._files.read(self._sandbox_id, target)
        return data.decode("utf-8", "replace") if format == "text" else data

    async def write(self, path: Path, data: Data) -> WriteInfo:
        """Writes a file, and the directories above it. A :class:`pathlib.Path` is a local file or folder to send."""
        target = workspace_path(path)
        if isinstance(data, os.PathLike):
            _, size = await self._files.upload_path(self._sandbox_id, os.fspath(data), target)
        else:
            _, size = await self._files.upload_bytes(self._sandbox_id, target, data_of(data))
        return WriteInfo(target.rsplit("/", 1)[-1], target, size)

    async def write_files(self, files: Sequence[Mapping[str, Any]]) -> List[WriteInfo]:
        """Writes several files, each a dict with ``path`` and ``data``."""
        return [await self.write(file["path"], file["data"]) for file in files]

    async def list(self, path: Path = "", depth: int = 1) -> List[EntryInfo]:
        """Lists a directory, down to ``depth`` levels, sorted by path."""
        if depth < 1:
            raise ValueError("depth is at least 1")
        target = workspace_path(path)
        entries = [EntryInfo._of(entry) for entry in await self._list(target, depth > 1)]
        level = target.count("/") + depth
        return [entry for entry in entries if entry.path.count("/") <= level]

    async def _list(self, target: str, recursive: bool) -> List[Mapping[str, Any]]:
        return await self._files.list(self._sandbox_id, target, recursive)

    async def exists(self, path: Path) -> bool:
        """Returns ``True`` if there is a file or directory of this path."""
        try:
            await self._list(workspace_path(path), False)
        except FileNotFoundException:
            return False
        return True

    async def get_info(self, path: Path) -> EntryInfo:
        """Returns the description of a file or directory."""
        target = workspace_path(path)
        if target == WORKSPACE:
            return EntryInfo("workspace", "dir", WORKSPACE, 0, 0o777, None, None)
        for entry in await self._list(target.rsplit("/", 1)[0], False):
            info = EntryInfo._of(entry)
            if info.path == target:
                return info
        raise FileNotFoundException(f"{target} does not exist", reason="FILE_NOT_FOUND", code="NOT_FOUND")

    async def make_dir(self, path: Path) -> bool:
        """Makes a directory and those above it. Returns ``False`` if it exists."""
        if await self.exists(path):
            return False
        await self._run("mkdir", "-p", "--", workspace_path(path))
        return True

    async def remove(self, path: Path) -> None:
        """Removes a file, or a directory with everything in it."""
        if workspace_path(path) == WORKSPACE:
            raise _invalid(f"{WORKSPACE} itself cannot be removed: kill the sandbox, or remove what is in it")
        await self.get_info(path)
        await self._run("rm", "-rf", "--", workspace_path(path))

    async def rename(self, old_path: Path, new_path: Path) -> EntryInfo:
        """Renames a file or directory."""
        await self.get_info(old_path)
        await self._run("mv", "-T", "--", workspace_path(old_path), workspace_path(new_path))
        return await self.get_info(new_path)

    async def _run(self, *argv: str) -> None:
        """Runs a program of the sandbox that must succeed."""
        arguments = run_arguments([text_of(part) for part in argv], parent=self._sandbox_id, exec_id=new_id())
        result = CommandResult(await self._client.open_run(arguments).result())
        if not result.success:
            raise SkilldError(result.stderr.strip() or result.error or argv[0], reason="COMMAND_FAILED")
