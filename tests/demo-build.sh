#!/usr/bin/env bash
# Builds the programs and the image of the demo, and shows which step runs and how long all of them will take. Run by
# tests/demo.sh.
#
# The programs are debug builds, which take a third of the time of a release.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${TARGET:?is set by make demo}" "${TRIPLE:?is set by make demo}"

# Nothing is built twice, so what a second build would reuse need not be written.
export CARGO_INCREMENTAL=0
# Usual duration of the steps on two cores, in seconds.
readonly programs_s=260 guest_s=45 image_s=60 steps=4
log=$(mktemp -d)
finish() {
    # The builds ignore the Ctrl-C of the terminal, since they run in the background.
    jobs -rp | xargs --no-run-if-empty kill 2>/dev/null || true
    rm -rf "$log"
}
trap finish EXIT
trap 'exit 130' INT TERM

# On a terminal the line is replaced every second, else there is one at most every minute.
end=$'\n' clear='' pause_s=60
[ ! -t 1 ] || end='' clear=$'\r\e[K' pause_s=1

# Prints the time that is usually left, from seconds.
time_left() {
    if (($1 > 90)); then
        echo "about $((($1 + 30) / 60)) minutes left"
    elif (($1 > 0)); then
        echo 'about a minute left'
    else
        echo 'it takes longer than usual'
    fi
}

# Waits for a build whose output is in a file, and shows how far it is.
await() { # number, title, process, file, usual seconds until all steps are done, crates
    local start=$SECONDS shown=1 line crates=
    while kill -0 "$3" 2>/dev/null; do
        if ((SECONDS - start > shown)); then
            [ "$6" = 0 ] || crates=" ($(grep -c '^ *Compiling ' "$4" || true) of $6 crates)"
            line="step $1 of $steps: $2$crates, $(time_left $(($5 - (SECONDS - start))))"
            printf '%s%s%s' "$clear" "$line" "$end"
            shown=$((SECONDS - start + pause_s - 1))
        fi
        sleep 0.2
    done
    wait "$3" || { printf '\n' && tail -n 40 "$4" && return 1; }
    printf '%s%s\n' "$clear" "step $1 of $steps: $2: $((SECONDS - start)) s"
}

# Prints the number of crates that a build of these packages compiles at most.
count_crates() { cargo tree --locked --quiet --prefix none --edges normal,build "$@" | cut -d' ' -f1,2 | sort -u | wc -l; }

# Beside the compiler, since it waits for downloads.
images/build.sh base >"$log/image" 2>&1 &
image=$!

cargo build --locked -p skilld -p skillctl >"$log/programs" 2>&1 &
await 1 'the daemon and its client' $! "$log/programs" $((programs_s + guest_s)) "$(count_crates -p skilld -p skillctl)"

RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked -p skilld-guest --target "$TRIPLE" >"$log/guest" 2>&1 &
await 2 'the guest, the first process of each container' $! "$log/guest" "$guest_s" "$(count_crates -p skilld-guest)"

await 3 'the image of the containers' "$image" "$log/image" "$image_s" 0
echo "step 4 of $steps: the demo"
