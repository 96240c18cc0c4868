#!/usr/bin/env python3
"""Fetch the comments of the pull request of this branch."""
from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

QUERY = """\
query($owner: String!, $repo: String!) {
  repository(owner: $owner, name: $repo) { id }
}
"""


def _run(cmd: list[str], stdin: str | None = None) -> str:
    done = subprocess.run(cmd, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"command failed: {' '.join(cmd)}")
    return done.stdout


def _run_json(cmd: list[str], stdin: str | None = None) -> dict[str, Any]:
    return json.loads(_run(cmd, stdin=stdin))


def ensure_signed_in() -> None:
    try:
        _run(["gh", "auth", "status"])
    except RuntimeError:
        print("run `gh auth login`", file=sys.stderr)
        raise


def main() -> None:
    ensure_signed_in()
    pr = _run_json(["gh", "pr", "view", "--json", "number"])
    cmd = ["gh", "api", "graphql", "-F", "query=@-", "-F", f"number={pr['number']}"]
    print(json.dumps(_run_json(cmd, stdin=QUERY)))


if __name__ == "__main__":
    main()
