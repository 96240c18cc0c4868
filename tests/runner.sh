#!/usr/bin/env bash
# Runs one test program for cargo, which tests/run.sh tells to do so: ends it after a time limit, and adds a line with the
# duration of each test to the file TEST_TIMES. Passes over the program whose name TEST_WITHOUT is.
set -euo pipefail
[[ $(basename "$1") != "${TEST_WITHOUT:--}"-* ]] || exit 0
# Time limit of one test program, in seconds: several times what the longest takes on two busy cores, also where other
# programs keep them busy. When a test hangs,
# the other programs still run.
limit_s=3600

# What every process of the program waits for, for whoever looks for the reason of a hang.
print_stacks() { # process
    local pid task
    for pid in "$1" $(pgrep --parent "$1" || true); do
        echo "test: process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c1-200)"
        for task in "/proc/$pid/task/"*; do
            echo "test:   $(cat "$task/comm"): $(tr '\n' ' ' <"$task/stack")"
        done
        ! command -v gdb >/dev/null || timeout 60 gdb --batch -ex 'thread apply all backtrace' --pid "$pid"
    done 2>/dev/null
}

run_program() { # program, arguments …
    local test timer ended code=0
    # In process groups of their own, which are ended whole if the program hangs or crashes: what it started may have its
    # output open, whose reader would wait.
    set -m
    # Not with the program's output, whose reader waits until no process has it open.
    sleep "$limit_s" >/dev/null 2>&1 &
    timer=$!
    # libtest prints durations only with an unstable option, which this variable permits.
    RUSTC_BOOTSTRAP=1 "$@" -Z unstable-options --report-time </dev/null &
    test=$!
    set +m
    trap 'kill -- "-$test" "-$timer" 2>/dev/null; exit 130' INT TERM
    wait -n -p ended "$test" "$timer" || code=$?
    if [ "$ended" = "$timer" ]; then
        echo "test: $1 is ended after $limit_s s: one of its tests that ran for over 60 seconds hangs" >&2
        print_stacks "$test" >&2
        kill -KILL -- "-$test"
        code=124
    fi
    ((code <= 128)) || kill -KILL -- "-$test" 2>/dev/null || true
    kill "$timer" 2>/dev/null || true
    return "$code"
}

# Not by awk, which reads a pipe in blocks: a test that hangs is to be seen at once.
note_durations() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
        [[ ! $line =~ ^test\ (.*)\ \.\.\.\ ok\ \<([0-9.]+)s\>$ ]] || echo "${BASH_REMATCH[2]} s  ${BASH_REMATCH[1]}" >>"$TEST_TIMES"
    done
}

code=0
run_program "$@" | note_durations || code=$?
exit "$code"
