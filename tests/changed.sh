#!/usr/bin/env bash
# Returns 0 if one of these paths differs from the last commit of origin's main, or if that commit is not known.
# Usage: tests/changed.sh PATH …    a path may be a pattern of git
set -euo pipefail
cd "$(dirname "$0")/.."
base=$(git merge-base HEAD origin/main 2>/dev/null) || exit 0
[ -n "$(git ls-files --others --exclude-standard -- "$@")" ] || ! git diff --quiet "$base" -- "$@"
