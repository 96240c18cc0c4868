"""Runs commands and Agent Skills in warm, locked-down containers of a skilld daemon.

    import skilld

    print(skilld.run("python3 hello.py", inputs=["hello.py"]).stdout)

    with skilld.Sandbox.create(skills=["csv-report"]) as box:
        run = box.run("python scripts/csv_report.py inputs/sales.csv", inputs=["sales.csv"], outputs=["out/**"])
        print(run.files["out/report.md"].text())

``Sandbox`` and ``run`` wait for their answers; ``AsyncSandbox`` and ``arun`` are for asyncio. The daemon is that of
``SKILLD_ENDPOINT``, or ``endpoint=`` of each function that begins something.
"""

from ._skilld import __version__

# The module typing takes longer to import than all of this; type checkers take the name for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._async.commands import AsyncCommandHandle, AsyncCommands, AsyncPty
    from ._async.files import AsyncFilesystem
    from ._async.sandbox import AsyncSandbox
    from ._async.sandbox import run as arun
    from ._async.storage import AsyncArtifacts
    from ._sync.commands import CommandHandle, Commands, Pty
    from ._sync.files import Filesystem
    from ._sync.sandbox import Sandbox, run
    from ._sync.storage import Artifacts
    from .agents import AsyncSession, AsyncSkills, Session, Skills, Tool
    from .errors import (
        AuthenticationException,
        CommandExitException,
        ConnectionException,
        FileNotFoundException,
        InvalidArgumentException,
        NotEnoughSpaceException,
        NotFoundException,
        RateLimitException,
        SandboxException,
        SandboxNotFoundException,
        SkilldError,
        TimeoutException,
        VersionException,
    )
    from .results import (
        ArtifactInfo,
        Collected,
        CommandResult,
        EntryInfo,
        OutputFile,
        ProcessInfo,
        PtySize,
        RunResult,
        SandboxInfo,
        SkillInfo,
        WriteInfo,
    )

_NAMES = {
    "._async.commands": "AsyncCommandHandle AsyncCommands AsyncPty",
    "._async.files": "AsyncFilesystem",
    "._async.sandbox": "AsyncSandbox arun",
    "._async.storage": "AsyncArtifacts",
    "._sync.commands": "CommandHandle Commands Pty",
    "._sync.files": "Filesystem",
    "._sync.sandbox": "Sandbox run",
    "._sync.storage": "Artifacts",
    ".agents": "AsyncSession AsyncSkills Session Skills Tool",
    ".errors": "AuthenticationException CommandExitException ConnectionException FileNotFoundException"
    " InvalidArgumentException NotEnoughSpaceException NotFoundException RateLimitException SandboxException"
    " SandboxNotFoundException SkilldError TimeoutException VersionException",
    ".results": "ArtifactInfo Collected CommandResult EntryInfo OutputFile ProcessInfo PtySize RunResult SandboxInfo"
    " SkillInfo WriteInfo",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> "Any":
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module, __name__), "run" if name == "arun" else name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return __all__
