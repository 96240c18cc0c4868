#!/usr/bin/env bash
# The main job, end to end: builds the programs and the image, then a private daemon runs the skill csv-report on a table
# of 5,000 rows, streaming; then the same by docker create, cp, start, cp, rm, for comparison. With the image
# skilld/office it also makes a workbook of the table. Leaves nothing but the build. Run by `make demo`.
#
# BIN and GUEST name the directory of programs and a guest that exist already; nothing is built then.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly table=tests/data/sales.csv image=skilld/base:latest office_image=skilld/office:latest rounds=5
readonly command=(python scripts/csv_report.py --group-by region --group-by product --sum revenue inputs/sales.csv)
readonly office_command=(python scripts/sales_workbook.py --by region --sum revenue inputs/sales.csv)
: "${TARGET:?is set by make demo}" "${TRIPLE:?is set by make demo}"
[ -n "${BIN-}" ] || tests/demo-build.sh
readonly BIN=${BIN:-$TARGET/debug} GUEST=${GUEST:-$TARGET/$TRIPLE/debug/skilld-guest}
# Short, since the paths of sockets end at 107 bytes.
dir=$(mktemp -d /tmp/skd.XXXXXX)
before=$(tests/leftovers.sh --before)
daemon= office_warm=0
! docker image inspect "$office_image" >/dev/null 2>&1 || office_warm=1

bold='' plain=''
[ ! -t 1 ] || bold=$'\e[1m' plain=$'\e[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
now() { echo "${EPOCHREALTIME/./}"; }
milliseconds() { awk -v us="$1" 'BEGIN { printf "%.1f ms", us / 1000 }'; }
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.1f ms", v[int((NR + 1) / 2)] / 1000 }'; }
skillctl() { "$BIN/skillctl" --endpoint "unix:$dir/state/skilld.sock" "$@"; }

finish() {
    local code=$?
    set +e
    trap '' EXIT INT TERM
    # The signal may have come while a function wrote into a file.
    exec >&3 2>&4
    # All this is done already if all went well.
    if [ -n "$daemon" ]; then
        skillctl drain --remove >/dev/null 2>&1 || true
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" || true
    fi
    docker ps --all --quiet --filter "label=io.skilld.test=$dir" | xargs --no-run-if-empty docker rm --force >/dev/null
    for id in $(docker ps --all --quiet --filter label=io.skilld.instance); do
        ! docker inspect -f '{{json .Mounts}}' "$id" | grep -qF "$dir/" || docker rm --force "$id" >/dev/null
    done
    [ "$code" = 0 ] || [ ! -e "$dir/log" ] || tail -n 30 "$dir/log" >&2
    rm -rf "${dir:?}"/*
    tests/leftovers.sh "$dir" "$before" || code=1
    exit "$code"
}
exec 3>&1 4>&2
trap finish EXIT
trap 'exit 130' INT TERM
# A closed pipe, as after `make demo | head`, is a failed write and not the end of this script before its time.
trap '' PIPE

# Asks until it is so, for at most 300 s, and gives up at once when the daemon is gone.
until_so() {
    local deadline=$((SECONDS + 300))
    until "$@" >/dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null || { echo "demo: the daemon ended; its log:" >&2; exit 1; }
        ((SECONDS < deadline)) || { echo "demo: waited 300 s for: $*" >&2; exit 1; }
        sleep 0.02
    done
}
# The table of pools has `1/1`, warm and wanted, after a pool's name.
is_warm() { skillctl pool list | grep -qE "^$1 +[1-9]"; }

run() { # directory for the results
    skillctl run csv-report --input "$table" --collect 'out/**' --to "$1" --timing -- "${command[@]}"
}

# One job by skilld: the microseconds of start (claim and stage), exec, collect, and of all as the shell sees it.
by_skilld() {
    local start all
    start=$(now)
    run "$dir/again" >"$dir/output" 2>&1
    all=$(($(now) - start))
    for step in start exec collect; do
        sed -n "s/.*\b$step took \([0-9.]*\) ms$/\1/p" "$dir/output" | awk '{ printf "%d ", $1 * 1000 }'
    done
    echo "$all"
    rm -r "$dir/again"
}

# The same by Docker alone: create and cp in, start, cp out, and all with rm.
by_docker() {
    local t=("$(now)") id i
    id=$(docker create --network none --user 0 --workdir /skill --label "io.skilld.test=$dir" "$image" "${command[@]}")
    docker cp skills/csv-report/. "$id:/skill" >/dev/null 2>&1
    docker cp "$dir/inputs" "$id:/skill" >/dev/null 2>&1
    t+=("$(now)")
    docker start --attach "$id" >/dev/null 2>&1
    t+=("$(now)")
    docker cp "$id:/skill/out" "$dir/again" >/dev/null 2>&1
    t+=("$(now)")
    docker rm --force "$id" >/dev/null
    t+=("$(now)")
    rm -r "$dir/again"
    for i in 1 2 3; do printf '%s ' $((t[i] - t[i - 1])); done
    echo $((t[4] - t[0]))
}

row() { # label, column, note
    printf '  %-24s %10s %12s   %s\n' "$1" "$(cut -d' ' -f"$2" "$dir/skilld" | median)" \
        "$(cut -d' ' -f"$2" "$dir/docker" | median)" "$3"
}

say 'A daemon with a private state directory'
# In a session of its own, so that a Ctrl-C reaches this script alone, which then ends it in good order. With time for a
# busy machine.
env -u SKILLD_SETUP SKILLD_ENGINE__TIMEOUT=120s SKILLD_ENGINE__BOOT_TIMEOUT=120s SKILLD_ENGINE__REMOVE_TIMEOUT=80s \
    SKILLD_POOLS__DEFAULT__CLAIM_TIMEOUT=80s SKILLD_POOLS__OFFICE__CLAIM_TIMEOUT=80s SKILLD_SERVER__STOP_TIMEOUT=60s \
    SKILLD_ENGINE__GUEST_PATH="$GUEST" SKILLD_SKILLS__ROOTS="[\"$PWD/skills\"]" SKILLD_POOLS__DEFAULT__WARM=1 \
    SKILLD_POOLS__OFFICE__WARM="$office_warm" SKILLD_POOLS__OFFICE__MAX="$((2 * office_warm))" \
    TMPDIR="$dir" setsid "$BIN/skilld" --state-dir "$dir/state" 2>"$dir/log" 3>&- 4>&- &
daemon=$!
start=$(now)
until_so skillctl server info
until_so is_warm default
echo "serving, with a warm container, after $(milliseconds $(($(now) - start)))"

say "skillctl run csv-report --input $table --collect 'out/**' --to report -- ${command[*]}"
run "$dir/report"

say 'The report that it collected (its beginning)'
find "$dir/report" -name report.md -exec head -n 32 {} +

say "The same $rounds times, and $rounds times with docker create, cp, start, cp, rm (medians)"
mkdir "$dir/inputs"
cp "$table" "$dir/inputs/"
for ((round = 0; round < rounds; round++)); do
    until_so is_warm default
    by_skilld >>"$dir/skilld"
    by_docker >>"$dir/docker"
done
printf '  %-24s %10s %12s\n' '' skilld docker
row 'start      create, cp in' 1 'skilld has the container ready'
row 'exec       start' 2 'most of it is the script itself'
row 'collect    cp out' 3 ''
row 'all' 4 'as the shell sees it, with docker rm; skilld deletes afterwards'

if ((office_warm)); then
    say "skillctl run --pool office sales-workbook --input $table --collect 'out/**' --to report -- ${office_command[*]}"
    until_so is_warm office
    skillctl run --pool office sales-workbook --input "$table" --collect 'out/**' --to "$dir/office" --timing -- \
        "${office_command[@]}"
    find "$dir/office" -name '*.xlsx' -printf '%f: %s bytes, formulas calculated by LibreOffice\n'
else
    say 'No Excel workbook of the table'
    echo "it needs the image $office_image: run \`make image IMAGE=office\` (some minutes, once), then this again"
fi

say 'The end'
skillctl drain --remove
kill "$daemon"
wait "$daemon"
daemon=
