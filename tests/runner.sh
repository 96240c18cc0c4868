#!/usr/bin/env bash
# Runs one test binary for cargo, which tests/run.sh tells to do so. Tests that need no Docker keep their files in MEMORY:
# they write and sync thousands of small ones, which takes a disk longer than all the rest of the tests.
set -euo pipefail
if [ "${CARGO_PKG_NAME-}" != skilld-tests ]; then
    export TMPDIR=$MEMORY
    # They wait for timers and processes more than they compute.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
fi
exec "$@"
