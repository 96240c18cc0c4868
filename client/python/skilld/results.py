"""Results: of runs and commands, of sandboxes, files, artifacts and skills. They show themselves in notebooks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ._html import html_file, html_run, html_table
from .errors import CommandExitException, SkilldError, TimeoutException

_PROBLEMS = {
    "TIMEOUT": "it ran for longer than its timeout",
    "NO_OUTPUT_TIMEOUT": "it printed nothing for too long",
    "OOM_KILLED": "the sandbox ran out of memory",
    "PIDS_LIMIT": "the sandbox's limit on processes refused a fork",
    "OUTPUT_LIMIT": "it printed more than permitted",
    "DISK_FULL": "the disk of the sandbox is full",
    "KILLED_BY_CLIENT": "it was killed",
    "WORKSPACE_EXPIRED": "the sandbox expired",
    "WORKSPACE_LOST": "the sandbox was lost",
}


def _time(seconds: Optional[float]) -> Optional[datetime]:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, OSError, ValueError):
        # A file may have a time after the year 9999.
        return None


@dataclass(frozen=True)
class OutputFile:
    """File that a run left."""

    path: str
    """Path relative to the sandbox's directory ``/workspace``."""
    data: bytes = field(repr=False)
    size: int
    """Size in the sandbox, in bytes."""
    mime_type: str
    sha256: str = field(repr=False)
    mode: int = field(repr=False)
    truncated: bool
    """``True`` if ``data`` is only the beginning of the file."""
    link_target: str = field(repr=False)
    artifact: str = field(repr=False)
    """Reference ``artifact://name@version``; empty if it was not saved."""

    def text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the content as text."""
        return self.data.decode(encoding, errors)

    def json(self) -> Any:
        """Returns the content as JSON."""
        import json

        return json.loads(self.data)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the content to a local file."""
        with open(path, "wb") as file:
            file.write(self.data)

    def _repr_html_(self) -> str:
        return html_file(self)


def _files(answers: List[Mapping[str, Any]]) -> Dict[str, OutputFile]:
    names = ("path", "data", "size", "mime_type", "sha256", "mode", "truncated", "link_target", "artifact")
    return {answer["path"]: OutputFile(*(answer[name] for name in names)) for answer in answers}


class Collected(Dict[str, OutputFile]):
    """Files that were collected, by path. ``skipped`` has path and reason of those that were left out."""

    skipped: List[Tuple[str, str]]
    artifacts: List[str]
    """References of saved artifacts, ``artifact://name@version``."""
    unmatched: List[str]
    """Globs that matched nothing."""

    def __init__(self, files: List[Mapping[str, Any]], summary: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(_files(files))
        summary = summary or {}
        self.skipped = summary.get("skipped", [])
        self.artifacts = summary.get("artifacts", [])
        self.unmatched = summary.get("unmatched", [])

    def __missing__(self, path: str) -> OutputFile:
        raise KeyError(f"no output has the path {path!r}; there are {list(self)}")

    def _repr_html_(self) -> str:
        return html_table(["path", "size", "type"], [[f.path, f.size, f.mime_type] for f in self.values()])


class DownloadedPaths(List[str]):
    """Paths of files that were written locally."""

    def __init__(self, paths: List[str], skipped: List[Tuple[str, str]], unmatched: List[str]) -> None:
        super().__init__(paths)
        self.skipped = skipped
        """Path and reason of each file that was left out."""
        self.unmatched = unmatched
        """Globs that matched nothing."""


class CommandResult:
    """Outcome and output of a command."""

    def __init__(
        self, answer: Mapping[str, Any], stdout: Optional[bytes] = None, stderr: Optional[bytes] = None
    ) -> None:
        end: Mapping[str, Any] = answer["end"] or {}
        self.stdout_bytes: bytes = answer["stdout"] if stdout is None else stdout
        self.stderr_bytes: bytes = answer["stderr"] if stderr is None else stderr
        self.exit_code: int = end.get("exit_code", 137)
        """Exit code as shells have it."""
        self.reason: str = end.get("reason", "WORKSPACE_LOST")
        """Cause of the end: ``EXITED``, ``SIGNALED``, ``TIMEOUT``, ``OOM_KILLED`` and so on."""
        self.error: Optional[str] = end.get("problem") or _PROBLEMS.get(self.reason)
        """Cause in words; ``None`` if the command exited by itself."""
        self.duration: Optional[float] = end.get("wall_seconds")
        """Seconds from the start to the end."""
        self.peak_memory_bytes: int = end.get("peak_memory_bytes", 0)
        self.lost_bytes: int = answer["lost"]
        """Bytes of output that were dropped before this reader got them."""
        sandbox_id, _, exec_id = answer["exec"].partition("/")
        self.sandbox_id: str = sandbox_id
        self.exec_id: str = exec_id

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def success(self) -> bool:
        """``True`` if the command exited by itself with code 0."""
        return self.exit_code == 0

    def check(self) -> "CommandResult":
        """Returns the result, or raises the exception for a command that failed."""
        if self.success:
            return self
        if self.reason in ("TIMEOUT", "NO_OUTPUT_TIMEOUT"):
            error: SkilldError = TimeoutException(f"the command was killed: {self.error}", reason=self.reason)
            error.result = self  # type: ignore[attr-defined]
            raise error
        raise CommandExitException(self)

    def __repr__(self) -> str:
        parts = [f"exit_code={self.exit_code}"]
        parts += [f"error={self.error!r}"] if self.error else []
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            shown = text if len(text) <= 200 else f"{text[:200]}… ({len(text):,} characters)"
            parts += [f"{name}={shown!r}"] if text else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return html_run(self, {})


class RunResult(CommandResult):
    """Result of :meth:`Sandbox.run` and :func:`skilld.run`: also files, warnings, and what was staged."""

    def __init__(
        self, answer: Mapping[str, Any], stdout: Optional[bytes] = None, stderr: Optional[bytes] = None
    ) -> None:
        super().__init__(answer, stdout, stderr)
        self.files: Collected = Collected(answer["files"], answer["summary"])
        """Files that match ``outputs``, by their paths."""
        self.warnings: List[str] = [warning["message"] for warning in answer["warnings"]]
        """Problems that the exit code does not show: kills for memory, full disks, packages that a skill misses."""
        self._skills = [skill["name"] for skill in answer["skills"]]
        for skill in answer["skills"]:
            self.warnings += [f"{skill['name']}: {problem['message']}" for problem in skill["problems"]]
        cut = [file for file in self.files.values() if file.truncated]
        self.warnings += [f"{file.path} is only the first {len(file.data):,} bytes" for file in cut]
        self.inputs: List[str] = [staged["path"] for staged in answer["inputs"]]
        """Paths of the inputs that were staged."""

    @property
    def artifacts(self) -> List[str]:
        """References of saved artifacts, ``artifact://name@version``."""
        return self.files.artifacts

    def check(self) -> "RunResult":
        super().check()
        return self

    def __repr__(self) -> str:
        more = f", files={list(self.files)!r}" if self.files else ""
        more += f", warnings={self.warnings!r}" if self.warnings else ""
        return super().__repr__()[:-1] + more + ")"

    def _repr_html_(self) -> str:
        return html_run(self, self.files)


@dataclass(frozen=True)
class SandboxInfo:
    """Description of a sandbox."""

    sandbox_id: str
    template: str
    """Pool of the container."""
    state: str
    metadata: Dict[str, str]
    started_at: Optional[datetime]
    end_at: Optional[datetime]
    """Time when it is removed, unless it is used or renewed."""
    cpu_count: float
    memory_mb: int
    skills: List[str]

    @classmethod
    def _of(cls, answer: Mapping[str, Any]) -> "SandboxInfo":
        return cls(
            answer["id"], answer["pool"], answer["state"].lower(), answer["labels"], _time(answer["created"]),
            _time(answer["expires"]), answer["cpu_millis"] / 1000, answer["memory_bytes"] >> 20, answer["skills"],
        )  # fmt: skip

    def _repr_html_(self) -> str:
        return html_table(["sandbox", "template", "state", "until", "skills"], [
            [self.sandbox_id, self.template, self.state, self.end_at, ", ".join(self.skills)]
        ])  # fmt: skip


@dataclass(frozen=True)
class ProcessInfo:
    """Command of a sandbox."""

    pid: int
    exec_id: str
    cmd: str
    args: List[str]
    envs: Dict[str, str]
    cwd: Optional[str]
    is_running: bool
    exit_code: Optional[int]

    @classmethod
    def _of(cls, answer: Mapping[str, Any]) -> "ProcessInfo":
        argv = list(answer["argv"]) or ["bash", "-c", answer["shell"]]
        end = answer["end"]
        return cls(
            answer["pid"], answer["id"], argv[0], argv[1:], answer["env"], answer["cwd"] or None,
            answer["state"] == "RUNNING", end["exit_code"] if end else None,
        )  # fmt: skip


@dataclass(frozen=True)
class EntryInfo:
    """File or directory of a sandbox."""

    name: str
    type: str
    """``file``, ``dir``, ``symlink`` or ``other``."""
    path: str
    """Absolute path in the sandbox."""
    size: int
    mode: int
    modified_time: Optional[datetime]
    symlink_target: Optional[str]

    @classmethod
    def _of(cls, answer: Mapping[str, Any]) -> "EntryInfo":
        path = answer["path"]
        kind = {"directory": "dir"}.get(answer["kind"], answer["kind"])
        return cls(
            path.rsplit("/", 1)[-1] or "workspace", kind, f"/workspace/{path}".rstrip("/"), answer["size"],
            answer["mode"], _time(answer["modified"]), answer["link_target"] or None,
        )  # fmt: skip


@dataclass(frozen=True)
class WriteInfo:
    """File that was written."""

    name: str
    path: str
    """Absolute path in the sandbox."""
    size: int


@dataclass(frozen=True)
class PtySize:
    """Size of a terminal, in characters."""

    rows: int
    cols: int


@dataclass(frozen=True)
class ArtifactInfo:
    """Version of an artifact."""

    name: str
    version: int
    size: int
    mime_type: str
    sha256: str = field(repr=False)
    created: Optional[datetime]

    @classmethod
    def _of(cls, answer: Mapping[str, Any]) -> "ArtifactInfo":
        return cls(
            answer["name"], answer["version"], answer["size"], answer["mime_type"], answer["sha256"],
            _time(answer["created"]),
        )  # fmt: skip

    @property
    def reference(self) -> str:
        """Reference of the version, for inputs."""
        return f"artifact://{self.name}@{self.version}"


@dataclass(frozen=True)
class SkillInfo:
    """Skill of the daemon's catalogue."""

    name: str
    description: str
    version: str
    digest: str = field(repr=False)
    usable: bool
    problems: List[str]
    body: str = field(repr=False)
    """Text of its SKILL.md; empty in lists."""

    @classmethod
    def _of(cls, answer: Mapping[str, Any]) -> "SkillInfo":
        problems = [problem["message"] for problem in answer["problems"]]
        return cls(
            answer["name"], answer["description"], answer["version"], answer["digest"], answer["usable"], problems,
            answer["body"],
        )  # fmt: skip
