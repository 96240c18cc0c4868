#!/usr/bin/env bash
# Checks tests/engine.sh with an engine of its own: what an engine leaves that was killed does not keep the next one from
# starting, and an engine that ends leaves nothing. Skipped without root, without which no engine starts.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo 'engine: skipped: only root starts an engine' >&2; exit 0; }
command -v dockerd >/dev/null || { echo 'engine: skipped: there is no dockerd' >&2; exit 0; }
[ ! -S /run/containerd/containerd.sock ] || { echo 'engine: skipped: it would use the containerd of this host' >&2; exit 0; }

# Short, since the paths of sockets end at 107 bytes.
dir=$(mktemp -d "${TMPDIR:-/tmp}/ske.XXXXXX")
readonly dir
export DOCKER_HOST=unix://$dir/docker.sock

fail() { echo "engine: $*" >&2; exit 1; }
# The processes of the engine, of its containerd and its shims: all of them have the directory in their arguments.
processes() { pgrep --full -- "$dir/" || true; }
kill_processes() { processes | xargs --no-run-if-empty kill -KILL 2>/dev/null || true; }

finish() {
    local code=$?
    trap '' EXIT INT TERM
    # Its process has nothing of the directory in its arguments.
    timeout 60 docker rm --force kept >/dev/null 2>&1 || true
    kill_processes
    tests/engine.sh stop "$dir" || code=1
    [ "$code" = 0 ] || tail -n 20 "$dir/log" >&2
    rm -rf "$dir"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

until_so() {
    local deadline=$((SECONDS + 120))
    until "$@"; do
        ((SECONDS < deadline)) || fail "waited 120 s for: $*"
        sleep 0.1
    done
}
all_ended() { [ -z "$(processes)" ]; }

tests/engine.sh start "$dir"
# Data of the image: a program that waits.
mkdir "$dir/image"
printf '#include <unistd.h>\nint main(void) { for (;;) pause(); }\n' | cc -static -x c -o "$dir/image/wait" -
tar --create --directory "$dir/image" wait | docker import --change 'CMD ["/wait"]' - wait >/dev/null
docker run --detach --network none --name kept wait >/dev/null

echo 'engine: killing the engine, its containerd and its shims'
kill_processes
until_so all_ended
# The numbers that a killed engine leaves belong to other programs by now.
for file in docker.pid exec/containerd/containerd.pid; do
    [ -e "$dir/$file" ] || fail "a killed engine leaves no $file: this checks nothing"
    echo $$ >"$dir/$file"
done
tests/engine.sh start "$dir"
state=$(docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' kept)
[ "$state" = 'exited 255' ] || fail "the container of the killed engine is '$state' instead of 'exited 255'"
docker start kept >/dev/null || fail 'a container of the killed engine does not start again'

tests/engine.sh stop "$dir"
until_so all_ended
mounts=$(awk -v dir="$dir/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo)
[ -z "$mounts" ] || fail "mounts are left: $mounts"
echo 'engine: starts again after it was killed, and leaves nothing'
