"""Arguments of runs: inputs, outputs, skills and paths, as the native part takes them."""

from __future__ import annotations

import os
import posixpath
from typing import IO, TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._skilld import new_id, staged_skill_name
from .errors import _invalid

if TYPE_CHECKING:
    from ._async.storage import AsyncArtifacts
    from ._sync.storage import Artifacts

InputData = Union[bytes, bytearray, memoryview, str, "os.PathLike[str]", IO[bytes], IO[str]]
Inputs = Union[Mapping[str, InputData], Iterable[Union[str, "os.PathLike[str]", IO[bytes], IO[str]]]]

WORKSPACE = "/workspace"
INPUT_BYTES_MAX = 1 << 20
"""Maximum size of one input in a call, in bytes; larger ones are sent before the call."""
INPUTS_BYTES_MAX = 3 << 20
"""Maximum size of all inputs in a call, in bytes: a message has at most 4 MiB."""
INPUTS_MAX = 256
"""Maximum number of inputs in a call."""

OUTPUT_BYTES_MAX = 64 << 20
"""Maximum size of a command's output, in bytes, beyond which it is killed: its result has all of it."""
IDLE_TIMEOUT_MAX = 24 * 3600
"""Longest time without use that a daemon permits by default, in seconds."""

_SCHEMES = ("artifact://", "host://", "workspace://", "skill://", "https://")
_FILES_MAX, _FILES_BYTES_MAX = 1000, 64 << 20


def text_of(path: Union[str, "os.PathLike[str]"]) -> str:
    """Returns a path as text."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise _invalid(f"{text!r} is no text")
    return text


def workspace_path(path: Union[str, "os.PathLike[str]"], base: str = WORKSPACE) -> str:
    """Returns the absolute path in the sandbox, without ``.`` and ``..``. Relative paths begin in ``base``."""
    return "/" + posixpath.normpath(posixpath.join(base, text_of(path))).lstrip("/")


def data_of(data: Any) -> bytes:
    """Returns bytes as they are, text in UTF-8, and what a file object has."""
    if hasattr(data, "read"):
        data = data.read()
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise _invalid(f"the text has a lone surrogate at {error.start}: pass bytes") from None
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"expected bytes, text or a file object, not {type(data).__name__}")


class LocalPath(str):
    """Path of a local file or folder that is too large for the call."""


class FolderArchive(bytes):
    """Tar of a local folder."""


PackedInput = Union[bytes, FolderArchive, LocalPath]


def _read(path: str) -> PackedInput:
    if os.path.isdir(path):
        return _pack_folder(path)
    with open(path, "rb") as file:
        data = file.read(INPUT_BYTES_MAX + 1)
    return LocalPath(path) if len(data) > INPUT_BYTES_MAX else data


def _pack_folder(folder: str) -> Union[FolderArchive, LocalPath]:
    """Packs a folder with the modes of its files. Links stay links, and what is no file, folder or link is left out."""
    import io
    import tarfile

    kinds = (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for directory, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(folders + names):
                path = os.path.join(directory, name)
                member = archive.gettarinfo(path, os.path.relpath(path, folder))
                if member is None or member.type not in kinds:
                    continue
                if member.islnk():
                    # Another name of a file that is in the archive.
                    member.type, member.size = tarfile.REGTYPE, os.path.getsize(path)
                # With room for headers, long names and the end.
                if archive.offset + member.size > INPUT_BYTES_MAX - 3 * tarfile.RECORDSIZE:
                    return LocalPath(folder)
                if member.isfile():
                    with open(path, "rb") as file:
                        archive.addfile(member, file)
                else:
                    archive.addfile(member)
    return FolderArchive(buffer.getvalue())


def _named(item: Any) -> Tuple[str, Any]:
    """Returns the target of an input without one: the last part of its name."""
    name = getattr(item, "name", None) if hasattr(item, "read") else text_of(item)
    if not isinstance(name, str) or not name:
        raise _invalid("an input without a name needs a target: inputs={'target': file}")
    if name.startswith(_SCHEMES):
        return "", name
    return os.path.basename(os.path.normpath(name)), item


def read_inputs(
    inputs: Optional[Inputs], has_skill: bool, base: str = WORKSPACE, stdin: Optional[bytes] = None
) -> Tuple[List[dict], List[Tuple[str, PackedInput]]]:
    """Returns the inputs that fit into the call with this stdin, and path and bytes of those that do not.

    A relative target begins in ``base``, where the command starts. The folder of a skill cannot be written: a bare name
    is put into its folder ``inputs/``, and other relative targets begin in the workspace, to which its folders ``out``,
    ``work`` and ``inputs`` lead.
    """
    if inputs is None:
        return [], []
    if isinstance(inputs, (str, bytes, os.PathLike)) or hasattr(inputs, "read"):
        raise TypeError("inputs is a list of paths, or a dict of targets and contents")
    is_mapping = isinstance(inputs, Mapping)
    pairs = list(inputs.items()) if isinstance(inputs, Mapping) else [_named(item) for item in inputs]
    if len(pairs) > INPUTS_MAX:
        raise _invalid(f"{len(pairs)} inputs: a call has at most {INPUTS_MAX}; put them into a folder, which is one")
    found: List[Tuple[str, Optional[str], PackedInput]] = []
    for target, item in pairs:
        target = text_of(target)
        source: Optional[str] = None
        data: PackedInput = b""
        if isinstance(item, str) and item.startswith(_SCHEMES):
            source, target = item, target or ("" if has_skill else "./")
        elif isinstance(item, str) and is_mapping:
            raise _invalid(
                f"the input {target!r} is a str, a text or a path: pass b\"…\" or text.encode() for its"
                " content, Path(…) for a local file, or a reference such as artifact://name"
            )
        elif isinstance(item, (str, os.PathLike)):
            data = _read(text_of(item))
        else:
            data = data_of(item)
        found.append((_target(target, has_skill, base, bool(source)), source, data))
    return _divide(found, INPUTS_BYTES_MAX - len(stdin or b""))


def _target(target: str, has_skill: bool, base: str, is_reference: bool) -> str:
    if is_reference and target in ("", "./"):
        return target
    if not target or target.endswith("/"):
        raise _invalid(f"{target!r} is no name of a file")
    if not has_skill:
        return workspace_path(target, base)
    return posixpath.join("inputs", target) if "/" not in target else target


def _divide(
    found: List[Tuple[str, Optional[str], PackedInput]], room: int
) -> Tuple[List[dict], List[Tuple[str, PackedInput]]]:
    """Divides inputs into those of the call, which has room for so many bytes, and those to send before it."""
    seen: Dict[str, str] = {}
    for target, source, _ in found:
        if source is not None and target in ("", "./"):
            continue
        path = workspace_path(target)
        if path in seen:
            raise _invalid(f"two inputs have the target {seen[path]!r}: give each one of its own")
        seen[path] = target
    inline: List[dict] = []
    large: List[Tuple[str, PackedInput]] = []
    for target, source, data in found:
        if isinstance(data, LocalPath) or len(data) > min(INPUT_BYTES_MAX, room):
            large.append((target, data))
            continue
        room -= len(data)
        is_archive = isinstance(data, FolderArchive)
        inline.append({"path": target, "source": source, "data": None if source else data, "is_archive": is_archive})
    return inline, large


def read_outputs(
    globs: Union[str, Sequence[str], None],
    save_to: Union["Artifacts", "AsyncArtifacts", None] = None,
    has_skill: bool = False,
) -> Optional[dict]:
    """Returns the selection of output files. Globs are relative to the workspace; ``inputs/`` of a skill is its own."""
    if globs is None:
        if save_to is not None:
            raise _invalid("save_to without outputs saves nothing")
        return None
    return {
        "globs": [_glob(text_of(glob), has_skill) for glob in ([globs] if isinstance(globs, str) else globs)],
        "max_files": _FILES_MAX,
        "max_file_bytes": _FILES_BYTES_MAX,
        "max_total_bytes": _FILES_BYTES_MAX,
        "save": None if save_to is None else save_to.prefix,
        "scope": None if save_to is None else save_to._scope,
    }


def _glob(glob: str, has_skill: bool) -> str:
    return glob if has_skill or glob.startswith("$") else posixpath.join(WORKSPACE, glob)


def workspace_arguments(
    template: Optional[str],
    timeout: Optional[float],
    metadata: Optional[Mapping[str, str]],
    envs: Optional[Mapping[str, str]],
    limits: Optional[Mapping[str, int]],
) -> dict:
    """Returns the arguments of a workspace."""
    names = ("memory_bytes", "cpu_millis", "pids", "disk_bytes")
    unknown = set(limits or ()) - set(names)
    if unknown:
        raise _invalid(f"unknown limit {sorted(unknown)[0]!r}: there are {', '.join(names)}")
    return {
        "pool": template or "",
        "labels": dict(metadata or {}),
        "env": dict(envs or {}),
        "limits": {name: limits.get(name, 0) for name in names} if limits else None,
        "idle_timeout": None if timeout is None else min(timeout, IDLE_TIMEOUT_MAX),
        "max_lifetime": timeout,
    }


def run_arguments(cmd: Union[str, Sequence[str]], **others: Any) -> dict:
    """Returns the arguments of a run: a string is a command of the shell, a list is passed as it is."""
    arguments: Dict[str, Any] = {
        "parent": "",
        "exec_id": "",
        "argv": [] if isinstance(cmd, str) else [text_of(part) for part in cmd],
        "shell": cmd if isinstance(cmd, str) else "",
        "skill": "",
        "cwd": "",
        "env": {},
        "stdin": None,
        "open_stdin": False,
        "terminal": None,
        "timeout": None,
        "output_bytes": OUTPUT_BYTES_MAX,
        "template": None,
        "keep": False,
        "skills": [],
        "inputs": [],
        "scope": None,
        "outputs": None,
    }
    arguments.update(others)
    if not arguments["skill"] and not arguments["cwd"]:
        arguments["cwd"] = WORKSPACE
    elif not arguments["skill"]:
        arguments["cwd"] = workspace_path(arguments["cwd"])
    return arguments


def prepare_run(
    cmd: Union[str, Sequence[str]],
    staged: Sequence[str],
    *,
    inputs: Optional[Inputs],
    outputs: Union[str, Sequence[str], None],
    skills: Union[str, Sequence[str]],
    skill: Optional[str],
    stdin: Union[str, bytes, None],
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    scope: Union["Artifacts", "AsyncArtifacts", None],
    save_to: Union["Artifacts", "AsyncArtifacts", None],
    exec_id: str,
    **others: Any,
) -> Tuple[dict, List[Tuple[str, PackedInput]]]:
    """Returns the arguments of a run that stages and collects, and the inputs to send before it.

    Without ``skill`` the command runs in the only one of ``skills``, or of those that are ``staged`` already.
    """
    skills = [skills] if isinstance(skills, str) else list(skills)
    if skill is None:
        names = skills or staged
        skill = names[0] if len(names) == 1 and cwd is None else ""
    sent = None if stdin is None else data_of(stdin)
    inline, large = read_inputs(inputs, bool(skill), workspace_path(cwd or WORKSPACE), sent)
    if exec_id and large:
        raise _invalid(
            "inputs that are too large for one call cannot be repeated by exec_id: "
            "send them with inputs.stage of a Sandbox"
        )
    arguments = run_arguments(
        cmd,
        skill=staged_skill_name(skill),
        cwd=cwd or "",
        env=dict(envs or {}),
        stdin=sent,
        skills=skills,
        inputs=inline,
        scope=None if scope is None else scope._scope,
        outputs=read_outputs(outputs, save_to, bool(skill)),
        exec_id=exec_id or new_id(),
        **others,
    )
    return arguments, large


def command_timeout(timeout: Optional[float]) -> Optional[float]:
    """Returns the timeout of a command, whose 0 means the daemon's maximum."""
    return 1e9 if timeout == 0 else timeout
