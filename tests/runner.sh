#!/usr/bin/env bash
# Runs one test binary for cargo, which tests/run.sh tells to do so. Tests that need no Docker keep their files in MEMORY:
# they write and sync thousands of small ones, which takes a disk longer than all the rest of the tests.
set -uo pipefail
# Time limit of one test binary, in seconds; the longest takes less than half of it on two busy cores. The other binaries
# run although a test of one hangs.
limit_s=900
if [ "${CARGO_PKG_NAME-}" != skilld-tests ]; then
    export TMPDIR=$MEMORY
    # They wait for timers and processes more than they compute.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
fi
timeout --foreground --kill-after=30 "$limit_s" "$@"
code=$?
# 124 says that the time was over, 137 that the binary had to be killed then.
((code != 124 && code != 137)) ||
    echo "test: $1 was ended after $limit_s s: one of its tests that ran for over 60 seconds hangs" >&2
exit "$code"
