"""Tool calls that never raise, and imports of packages that the user may not have installed."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..agents import Session


def import_framework(module: str, package: str) -> Any:
    """Imports a framework's module.

    Raises ImportError with the command that installs `package` if the framework is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A framework that is installed and lacks a dependency of its own has another fault.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ImportError(f'failed to import {module}: install it with "pip install {package}"', name=module) from error


def call_tool(session: Session, name: str, arguments: str | dict[str, Any]) -> str:
    """Calls a skill tool and returns the text for the model, also if the call fails.

    `arguments` are an object, or its JSON as the model wrote it.
    """
    try:
        return session.call(name, arguments)
    except Exception as error:  # The model can try another call; an exception would end the agent's run.
        return _error_text(error)


async def acall_tool(session: Session, name: str, arguments: str | dict[str, Any]) -> str:
    """Does what `call_tool` does, without blocking the event loop."""
    try:
        return await session.acall(name, arguments)
    except Exception as error:
        return _error_text(error)


def _error_text(error: Exception) -> str:
    """Returns an error as the skill tools write errors for models."""
    code = getattr(error, "reason", None) or "TOOL_FAILED"
    return json.dumps({"error": code, "message": str(error), "status": "failed"})
