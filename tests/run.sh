#!/usr/bin/env bash
# Every test, and then the proof that nothing of theirs is left. Run by `make test`.
#
# What needs no compiler runs in the background, beside the compiler and the tests that need no image. Each step prints
# its duration and how many are done; the end lists the ten slowest tests.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

: "${SKILLD_BIN_DIR:?is set by make test}" "${SKILLD_GUEST:?is set by make test}"
# Everything temporary goes below here: what is left can then be told from what belongs to others. Kept short,
# since the paths of sockets end at 107 bytes.
TMPDIR=$(mktemp -d /tmp/skt.XXXXXX) || exit 1
export TMPDIR
# A test runs programs of its own directory as another user.
chmod 0711 "$TMPDIR"
# For tests without Docker, in memory where the host has at least 2 GB of it to spare and lets programs run from there.
MEMORY=$(mktemp -d /dev/shm/skt.XXXXXX 2>/dev/null) || MEMORY=
can_run() { printf '#!/bin/sh\n' >"$1/run" && chmod +x "$1/run" && "$1/run"; }
if [ -z "$MEMORY" ] || ! can_run "$MEMORY" || (($(df --output=avail --block-size=1M "$MEMORY" | tail -n 1) < 2000)); then
    rm -rf "$MEMORY"
    MEMORY=$(mktemp -d "$TMPDIR/memory.XXXXXX") || exit 1
fi
rm -f "$MEMORY/run"
# Outside of TMPDIR, whose content the last steps look for.
logs=$(mktemp -d /tmp/skilld-test-logs.XXXXXX) || exit 1
export MEMORY TEST_TIMES=$logs/times
: >"$TEST_TIMES"
# Ends what still runs in the background.
finish() {
    local group
    for group in $(jobs -rp); do kill -- "-$group" 2>/dev/null; done
    wait
    rm -rf "$logs"
}
trap finish EXIT
trap 'echo "test: interrupted; files of the tests are in $TMPDIR and $MEMORY" >&2; exit 130' INT TERM
# Runs a command in a process group of its own, which signals of a terminal don't reach: `finish` ends it.
in_background() {
    set -m
    "$@" </dev/null &
    set +m
}
# The calls of make below are none of the jobs of the make that runs this.
unset MAKEFLAGS MFLAGS
before=$(tests/leftovers.sh --before)
# Some open hundreds of connections; the limit is often 1024.
ulimit -Sn "$(ulimit -Hn)"

# As a workspace would: an unprivileged uid, no network, nothing writable but /tmp.
skills() { # image, directory of tests
    docker run --rm --network none --read-only --user 200000:200000 --cap-drop ALL --tmpfs /tmp:exec \
        --volume "$PWD:/repository:ro" --workdir /repository --label io.skilld.test=skills "skilld/$1:latest" \
        python3 -B -m unittest discover -s "$2"
}

# The office image takes minutes to make: its sample is tested where the image exists.
sample_skills() {
    skills base tests/skills || return
    ! docker image inspect skilld/office:latest >/dev/null 2>&1 || skills office tests/skills/office
}

# One selection of packages for all calls of cargo, since cargo resolves features by it.
runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
cargo_test() { env "$runner=$PWD/tests/runner.sh" cargo test --locked --no-fail-fast "$@"; }

in_process() {
    # They wait for timers and processes more than they compute.
    TMPDIR=$MEMORY RUST_TEST_THREADS=$((8 * $(nproc))) TEST_WITHOUT=e2e cargo_test
}

# The cases of the office image run where it exists; `make compat` builds it, and runs those of the web image.
end_to_end() { # module, options of the test program …
    SKILLD_COMPAT_IN_GATE=1 RUST_TEST_THREADS=$((4 * $(nproc))) cargo_test --test e2e -- "$1::" "${@:2}"
}

# What README.md tells a new user to type first.
first_steps() {
    make --no-print-directory demo && make --no-print-directory image guest build || return
    local state="$TMPDIR/run" skillctl=$SKILLD_BIN_DIR/skillctl daemon pools failed=1
    # With time for a busy machine.
    in_background env SKILLD_ENGINE__TIMEOUT=120s SKILLD_ENGINE__BOOT_TIMEOUT=120s SKILLD_ENGINE__REMOVE_TIMEOUT=80s \
        make --no-print-directory run STATE="$state"
    daemon=$!
    for _ in {1..3000}; do
        pools=$("$skillctl" --endpoint "unix:$state/skilld.sock" -o json pool list 2>/dev/null)
        ! grep -qE '"warm": *[1-9]' <<<"$pools" || { failed=0 && break; }
        sleep 0.1
    done
    "$skillctl" --endpoint "unix:$state/skilld.sock" drain --remove || failed=1
    kill -- "-$daemon"
    wait "$daemon"
    rm -rf "$state"
    return "$failed"
}

# Each lane appends a line for each of its steps that ends.
results=$logs/results
: >"$results"
total=0
step() { # name, command …
    local name=$1 start=$SECONDS result=ok
    shift
    echo "test: $name …" >&3
    "$@" || result=FAILED
    echo "$result $name" >>"$results"
    echo "test: $name: $result, $((SECONDS - start)) s; $(wc -l <"$results") of $total steps done" >&3
    [ "$result" = ok ]
}
# A step whose output is shown only if it fails, but for what it installs.
quiet_step() { # name, command …
    local log=$logs/quiet.$BASHPID
    step "$@" 2>&1 | tee "$log" | grep --line-buffered -E '^setup: |: skipped: ' >&3
    [ "${PIPESTATUS[0]}" = 0 ] || { sed 's/^/    /' "$log" >&3 && return 1; }
}
exec 3>&2

# Without a compiler, and without the foreground's images and tests but for the base image.
background_lane() {
    # Ends when the process does.
    tail --pid="$1" -f /dev/null
    quiet_step 'the images' tests/images.sh
    quiet_step 'the sample skills' sample_skills
    quiet_step 'builds of environments' python3 -B -m unittest discover -s tests/environments
    quiet_step 'the documents' tests/docs.sh
    quiet_step "Docker's engine" tests/engine-checks.sh
}
foreground_lane() {
    step 'compile the tests and their programs' make --no-print-directory programs || return
    step 'tests without Docker' in_process
    wait "$base_image" || { echo 'test: without the base image no test with Docker runs' >&2 && return; }
    step 'what only Docker can refuse' end_to_end functional
    step 'security' end_to_end security
    step 'crashes' end_to_end crash
    step 'load' end_to_end load --test-threads=1
    # `make compat` runs the others, whose packages take minutes to install.
    step 'clients of others' end_to_end foreign --skip foreign::frameworks::
    step 'published shapes of skills' end_to_end compat
    step 'gVisor' tests/gvisor.sh
    # The demo proves that it leaves nothing, and would take containers of these steps for its own.
    wait "$background"
    step 'the first steps' first_steps
}
total=$(declare -f background_lane foreground_lane | grep -cE '^ +(quiet_)?step ')
# The base image, and the two proofs at the end.
total=$((total + 3))

engine=$(docker info --format 'Docker {{.ServerVersion}}, {{.Driver}}, cgroup v{{.CgroupVersion}}')
echo "test: $total steps, on $engine; on two cores about 10 minutes, and 7 more if everything has to be compiled" >&2
in_background quiet_step 'the base image' images/build.sh base
base_image=$!
in_background background_lane "$base_image"
background=$!
foreground_lane
# The lanes of a gate that could not go on.
for group in $(jobs -rp); do kill -- "-$group" 2>/dev/null; done
wait
step 'nothing is left in memory' env -u TMPDIR -u MEMORY tests/leftovers.sh "$MEMORY" "$before"
step 'nothing is left' env -u TMPDIR tests/leftovers.sh "$TMPDIR" "$before"

echo 'test: the ten slowest tests:' >&2
sort -rn "$TEST_TIMES" | head -n 10 | sed 's/^/test:   /' >&2
failed=$(sed -n 's/^FAILED /test: failed: /p' "$results")
skipped=$((total - $(wc -l <"$results")))
if [ -n "$failed" ] || ((skipped > 0)); then
    [ -z "$failed" ] || echo "$failed" >&2
    ((skipped == 0)) || echo "test: $skipped steps did not run" >&2
    exit 1
fi
echo "test: everything passed in $SECONDS s, on $engine"
