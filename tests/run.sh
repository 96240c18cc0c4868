#!/usr/bin/env bash
# Every test, and then the proof that nothing of theirs is left. Run by `make test`, which builds what it needs.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

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
export MEMORY
# The calls of make below are none of the jobs of the make that runs this.
unset MAKEFLAGS MFLAGS
before=$(tests/leftovers.sh --containers)
failed=()
# Some open hundreds of connections; the limit is often 1024.
ulimit -Sn "$(ulimit -Hn)"

step() {
    local name=$1 start=$SECONDS
    shift
    echo "test: $name …" >&2
    "$@" || failed+=("$name")
    echo "test: $name took $((SECONDS - start)) s" >&2
}

# As a workspace would: an unprivileged uid, no network, nothing writable but /tmp.
skills() { # image, directory of tests
    docker run --rm --network none --read-only --user 200000:200000 --cap-drop ALL --tmpfs /tmp:exec \
        --volume "$PWD:/repository:ro" --workdir /repository --label io.skilld.test=skills "skilld/$1:latest" \
        python3 -B -m unittest discover -s "$2"
}

# What README.md tells a new user to type first.
first_steps() {
    make --no-print-directory demo && make --no-print-directory image guest build || return
    local state="$TMPDIR/run" skillctl=${CARGO_TARGET_DIR:-target}/release/skillctl daemon pools failed=1
    setsid make --no-print-directory run STATE="$state" &
    daemon=$!
    for _ in {1..600}; do
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

# The office image and its sample are checked where it exists: making it takes minutes.
step 'the images' tests/images.sh
step 'the sample skills' skills base tests/skills
! docker image inspect skilld/office:latest >/dev/null 2>&1 ||
    step 'the sample skill of the office image' skills office tests/skills/office
step 'builds of environments' python3 -B -m unittest discover -s tests/environments
step 'the documents' tests/docs.sh
# With the fault points: tests/crash/faults.rs runs the daemon that this builds beside the tests, and no other one has them.
runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
# The cases of the office image run where it exists; `make compat` builds it.
step 'the crates' env "$runner=$PWD/tests/runner.sh" SKILLD_COMPAT_WITHOUT_OFFICE=1 cargo test --workspace --locked --no-fail-fast --features skilld/fault-points
step 'gVisor' tests/gvisor.sh
step 'the first steps' first_steps
step 'nothing is left in memory' env -u TMPDIR -u MEMORY tests/leftovers.sh "$MEMORY" "$before"
step 'nothing is left' env -u TMPDIR tests/leftovers.sh "$TMPDIR" "$before"

if ((${#failed[@]})); then
    printf 'test: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "test: everything passed in $SECONDS s"
