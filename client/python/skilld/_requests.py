"""Arguments of runs: inputs, outputs, skills and paths, as the native part takes them."""

from __future__ import annotations

import os
import posixpath
from typing import IO, TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

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

_SCHEMES = ("artifact://", "host://", "workspace://", "skill://", "https://", "http://")
_OUTPUT_FILES_MAX, _OUTPUT_BYTES_MAX = 1000, 64 << 20


def text_of(path: Union[str, "os.PathLike[str]"]) -> str:
    """Returns a path as text."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise _invalid(f"{text!r} is no text")
    return text


def workspace_path(path: Union[str, "os.PathLike[str]"]) -> str:
    """Returns the absolute path in the sandbox: relative ones begin where commands start."""
    return posixpath.join(WORKSPACE, text_of(path))


def skill_folder(skill: str) -> str:
    """Returns the name under which a skill is staged: without a version, and without the skill around it."""
    return skill.split("@", 1)[0].rsplit("/", 1)[-1]


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


def _walk(folder: str, target: str) -> Iterable[Tuple[str, str]]:
    """Yields target and path of each file of a local folder."""
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                yield posixpath.join(target, os.path.relpath(path, folder)), path


class LocalFile(str):
    """Path of a local file that is too large for the call."""


def _read(path: str) -> Union[bytes, LocalFile]:
    with open(path, "rb") as file:
        data = file.read(INPUT_BYTES_MAX + 1)
    return LocalFile(path) if len(data) > INPUT_BYTES_MAX else data


def _named(item: Any) -> Tuple[str, Any]:
    """Returns the target of an input without one: the last part of its name."""
    name = getattr(item, "name", None) if hasattr(item, "read") else text_of(item)
    if not isinstance(name, str) or not name:
        raise _invalid("an input without a name needs a target: inputs={'target': file}")
    if name.startswith(_SCHEMES):
        return "", name
    return os.path.basename(os.path.normpath(name)), item


def read_inputs(inputs: Optional[Inputs], has_skill: bool) -> Tuple[List[dict], List[Tuple[str, Union[bytes, LocalFile]]]]:
    """Returns the inputs that fit into the call, and path and bytes of those that do not.

    A relative target begins where the command starts. The folder of a skill cannot be written, so a bare name means its
    folder ``inputs/`` there.
    """
    if inputs is None:
        return [], []
    if isinstance(inputs, (str, bytes, os.PathLike)) or hasattr(inputs, "read"):
        raise TypeError("inputs is a list of paths, or a dict of targets and contents")
    pairs = list(inputs.items()) if isinstance(inputs, Mapping) else [_named(item) for item in inputs]
    found: List[Tuple[str, Optional[str], Union[bytes, LocalFile]]] = []
    for target, item in pairs:
        target = text_of(target)
        if isinstance(item, str) and item.startswith(_SCHEMES):
            found.append((target or ("" if has_skill else "./"), item, b""))
        elif isinstance(item, (str, os.PathLike)):
            path = text_of(item)
            if os.path.isdir(path):
                found.extend((inner, None, _read(file)) for inner, file in _walk(path, target))
            else:
                found.append((target, None, _read(path)))
        else:
            found.append((target, None, data_of(item)))
    return _divide([(_target(target, has_skill, bool(source)), source, data) for target, source, data in found])


def _target(target: str, has_skill: bool, is_reference: bool) -> str:
    if is_reference and target in ("", "./"):
        return target
    if not target or target.endswith("/"):
        raise _invalid(f"{target!r} is no name of a file")
    if not has_skill:
        return workspace_path(target)
    return posixpath.join("inputs", target) if "/" not in target else target


def _divide(found: List[Tuple[str, Optional[str], Union[bytes, LocalFile]]]) -> Tuple[List[dict], List[Tuple[str, Union[bytes, LocalFile]]]]:
    """Divides inputs into those of the call and those to send before it."""
    seen: Dict[str, str] = {}
    for target, source, _ in found:
        if source is not None and target in ("", "./"):
            continue
        place = posixpath.normpath(posixpath.join(WORKSPACE, target))
        if place in seen:
            raise _invalid(f"two inputs have the target {seen[place]!r}: give each one of its own")
        seen[place] = target
    if len(found) > INPUTS_MAX:
        raise _invalid(f"{len(found)} inputs: a call has at most {INPUTS_MAX}; send a folder with files.write")
    inline: List[dict] = []
    large: List[Tuple[str, Union[bytes, LocalFile]]] = []
    room = INPUTS_BYTES_MAX
    for target, source, data in found:
        if isinstance(data, LocalFile) or len(data) > INPUT_BYTES_MAX or len(data) > room:
            large.append((target, data))
        else:
            room -= len(data)
            inline.append({"path": target, "source": source, "data": None if source else data})
    return inline, large


def read_outputs(
    globs: Union[str, Sequence[str], None], save_to: Union["Artifacts", "AsyncArtifacts", None] = None
) -> Optional[dict]:
    """Returns the selection of output files."""
    if globs is None:
        if save_to is not None:
            raise _invalid("save_to without outputs saves nothing")
        return None
    return {
        "globs": [globs] if isinstance(globs, str) else list(globs),
        "max_files": _OUTPUT_FILES_MAX,
        "max_file_bytes": _OUTPUT_BYTES_MAX,
        "max_total_bytes": _OUTPUT_BYTES_MAX,
        "changed_only": False,
        "omit_data": False,
        "save": None if save_to is None else save_to.prefix,
        "scope": None if save_to is None else save_to._scope,
    }


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
        "idle_timeout": timeout,
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
        "template": None,
        "keep": False,
        "skills": [],
        "inputs": [],
        "outputs": None,
    }
    arguments.update(others)
    if not arguments["skill"] and not arguments["cwd"]:
        arguments["cwd"] = WORKSPACE
    elif not arguments["skill"]:
        arguments["cwd"] = workspace_path(arguments["cwd"])
    return arguments
