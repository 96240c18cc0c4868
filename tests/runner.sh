#!/usr/bin/env bash
# Runs one test binary for cargo, which tests/run.sh tells to do so. Tests that need no Docker keep their files in MEMORY:
# they write and sync thousands of small ones, which takes a disk longer than all the rest of the tests.
set -euo pipefail
[ "${CARGO_PKG_NAME-}" = skilld-tests ] || export TMPDIR=$MEMORY
exec "$@"
