"""Tool calls that never raise, imports of packages that the user may not have installed, and the bound of agent loops."""

from __future__ import annotations

import importlib
import json
from typing import Any

# Requests that a loop makes for one question by default; agents need fewer than ten as a rule.
REQUESTS_MAX = 50


class TooManyRequestsError(RuntimeError):
    """Error of an agent loop whose model still calls tools after the last request."""

    def __init__(self, requests_max: int) -> None:
        super().__init__(f"the model still calls tools after {requests_max} requests: raise requests_max")


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


def call_tool(session: Any, name: str, arguments: str | dict[str, Any]) -> str:
    """Calls a skill tool and returns its result, or its error as JSON for the model to read."""
    try:
        return session.call(name, _parse_arguments(arguments))
    except Exception as error:  # The model can try another call; an exception would end the agent's run.
        return _error_text(error)


async def acall_tool(session: Any, name: str, arguments: str | dict[str, Any]) -> str:
    """Calls a skill tool like `call_tool`, without blocking the event loop."""
    try:
        return await session.acall(name, _parse_arguments(arguments))
    except Exception as error:
        return _error_text(error)


def _parse_arguments(arguments: str | dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, which some frameworks hand over as the JSON text that the model wrote."""
    parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    if not isinstance(parsed, dict):
        raise ValueError(f"the arguments are no JSON object: {arguments}")
    return parsed


def _error_text(error: Exception) -> str:
    """Returns an error as the skill tools write errors for models."""
    code = getattr(error, "reason", None) or ("INVALID_ARGUMENTS" if isinstance(error, ValueError) else "TOOL_FAILED")
    return json.dumps({"error": code, "message": str(error), "status": "failed"}, ensure_ascii=False)
