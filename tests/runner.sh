#!/usr/bin/env bash
# Runs one test binary for cargo, which tests/run.sh tells to do so. Tests that need no Docker keep their files in MEMORY:
# they write and sync thousands of small ones, which takes a disk longer than all the rest of the tests.
set -euo pipefail
# Time limit of one test binary, in seconds; the longest takes less than half of it on two busy cores. When a test hangs,
# the other binaries still run.
limit_s=900
if [ "${CARGO_PKG_NAME-}" != skilld-tests ]; then
    export TMPDIR=$MEMORY
    # They wait for timers and processes more than they compute.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
fi
code=0
timeout --foreground --kill-after=10 "$limit_s" "$@" || code=$?
((SECONDS < limit_s)) ||
    echo "test: $1 was ended after $limit_s s: one of its tests that ran for over 60 seconds hangs" >&2
exit "$code"
