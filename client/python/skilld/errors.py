"""Exceptions of the package. Their names are E2B's wherever they mean the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Type

if TYPE_CHECKING:
    from .results import CommandResult

_HINTS = {
    "UNAUTHENTICATED": "pass token=…, or set SKILLD_TOKEN or SKILLD_TOKEN_FILE",
    "PERMISSION_DENIED": "use a token whose role permits this call",
    "WORKSPACE_NOT_FOUND": "create a sandbox; those that are idle for too long are removed: see set_timeout",
    "POOL_EXHAUSTED": "try again after retry_after seconds, or raise the pool's `max`",
    "QUOTA_EXCEEDED": "kill sandboxes that are no longer needed, or ask the operator for a larger quota",
    "DISK_FULL": "remove files, or create the sandbox with a larger limit",
    "ID_TAKEN": "choose another id, or leave it out",
    "DRAINING": "try again after retry_after seconds: the daemon is being restarted",
    "LIMIT_EXCEEDED": "send less, or in several calls",
    "NOT_IMPLEMENTED": "use a daemon and a package of the same version",
}


class SkilldError(Exception):
    """Base class of all errors. A command that fails is none, unless :class:`CommandExitException` is asked for."""

    reason: Optional[str]
    """Reason of the daemon, such as ``WORKSPACE_NOT_FOUND``, or of this package; ``None`` if there is none."""
    code: Optional[str]
    """Name of the gRPC code, such as ``NOT_FOUND``; ``None`` if no server answered."""
    hint: Optional[str]
    """Advice on the next step; ``None`` if the message has it or none is known."""
    retry_after: Optional[float]
    """Seconds after which the daemon accepts another try; ``None`` if it named no time."""

    def __init__(
        self,
        message: str = "",
        *,
        reason: Optional[str] = None,
        code: Optional[str] = None,
        hint: Optional[str] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.reason, self.code, self.hint, self.retry_after = reason, code, hint, retry_after

    def __str__(self) -> str:
        message = super().__str__()
        if self.hint and self.hint not in message:
            return f"{message}; {self.hint}"
        return message


SandboxException = SkilldError


class TimeoutException(SkilldError):
    """A command or a call took longer than permitted."""


class InvalidArgumentException(SkilldError):
    """An argument cannot be used."""


class NotEnoughSpaceException(SkilldError):
    """The disk of the sandbox is full."""


class NotFoundException(SkilldError):
    """The resource that the call names does not exist."""


class FileNotFoundException(NotFoundException):
    """The file or directory does not exist."""


class SandboxNotFoundException(NotFoundException):
    """The sandbox does not exist, or no longer."""


class AuthenticationException(SkilldError):
    """The daemon does not accept the credentials, or they do not permit the call."""


class RateLimitException(SkilldError):
    """A quota or a pool is used up."""


class ConnectionException(SkilldError):
    """The daemon cannot be reached, or the connection to it was lost."""


class VersionException(SkilldError):
    """The package and the daemon do not fit each other."""


class CommandExitException(SkilldError):
    """A command exited with another code than 0. ``result`` is its result."""

    def __init__(self, result: CommandResult) -> None:
        self.result = result
        self.stdout: str = result.stdout
        self.stderr: str = result.stderr
        self.exit_code: int = result.exit_code
        self.error: Optional[str] = result.error
        text = f"Command exited with code {self.exit_code}"
        text += f" ({self.error})" if self.error else ""
        text += f" and error:\n{self.stderr}" if self.stderr else ""
        super().__init__(text, reason="COMMAND_FAILED")

    def __reduce__(self) -> tuple:
        return type(self), (self.result,)


_BY_REASON: Dict[str, Type[SkilldError]] = {
    "WORKSPACE_NOT_FOUND": SandboxNotFoundException,
    "FILE_NOT_FOUND": FileNotFoundException,
    "DISK_FULL": NotEnoughSpaceException,
    "STATE_DISK_FULL": NotEnoughSpaceException,
    "CONNECTION_FAILED": ConnectionException,
    "STREAM_LOST": ConnectionException,
    "GUEST_LOST": ConnectionException,
    "VERSION_MISMATCH": VersionException,
    "NOT_IMPLEMENTED": VersionException,
    "INVALID_ENDPOINT": InvalidArgumentException,
    "INVALID_CREDENTIAL": AuthenticationException,
    "LIMIT_UNSUPPORTED": InvalidArgumentException,
    "LIMIT_EXCEEDED": InvalidArgumentException,
    "SKILL_NOT_PACKED": InvalidArgumentException,
}
_BY_CODE: Dict[str, Type[SkilldError]] = {
    "INVALID_ARGUMENT": InvalidArgumentException,
    "NOT_FOUND": NotFoundException,
    "UNAUTHENTICATED": AuthenticationException,
    "PERMISSION_DENIED": AuthenticationException,
    "RESOURCE_EXHAUSTED": RateLimitException,
    "DEADLINE_EXCEEDED": TimeoutException,
    "UNAVAILABLE": ConnectionException,
}


def _make(
    code: str, reason: Optional[str], message: str, hint: Optional[str] = None, retry_after: Optional[float] = None
) -> SkilldError:
    """Makes the exception for an error of the native part."""
    kind = _BY_REASON.get(reason or "") or _BY_CODE.get(code, SkilldError)
    hint = hint or _HINTS.get(reason or "")
    if kind is ConnectionException:
        # The native part names the options of the command line.
        for option in ("endpoint", "ca-file", "cert-file", "key-file"):
            keyword = option.replace("-", "_") + "="
            message = message.replace(f"--{option}", keyword)
            hint = hint and hint.replace(f"--{option}", keyword)
    return kind(message, reason=reason, code=code or None, hint=hint, retry_after=retry_after)


def _invalid(message: str) -> SkilldError:
    return InvalidArgumentException(message, reason="INVALID_REQUEST", code="INVALID_ARGUMENT")
