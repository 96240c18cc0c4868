#!/usr/bin/env bash
# The functional and the security suite on a Podman of its own, as root. Run by `make test-podman`, which builds what it
# needs; Docker is needed only for the image. Usage: tests/podman.sh [FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
readonly image=skilld/base:latest
filters=(functional:: security::)
case ${1-} in
'') ;;
functional::* | security::*) filters=("$1") ;;
*) echo "podman: a test of functional:: or security::, not $1" >&2 && exit 2 ;;
esac

# Kept short, since the paths of sockets end at 107 bytes.
dir=$(mktemp -d /tmp/skp.XXXXXX)
mkdir "$dir/tmp"
# A test runs programs of its own directory as another user.
chmod 0711 "$dir"
# The registries of tests speak plain HTTP, which Docker takes from loopback addresses.
printf '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n' >"$dir/registries.conf"
export CONTAINERS_REGISTRIES_CONF=$dir/registries.conf
service=
finish() {
    local status=$? left=
    trap - EXIT
    if [ -n "$service" ]; then
        left=$("${podman[@]}" ps --all --quiet --filter label=io.skilld.instance 2>/dev/null) || true
        "${podman[@]}" rm --all --force --volumes >/dev/null 2>&1 || true
        kill "$service" && wait "$service" || true
        tail -n 20 "$dir/log" | sed 's/^/podman: /' >&2
    fi
    # Layers of a storage driver that are still mounted.
    awk -v dir="$dir/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount
    rm -rf "$dir"
    [ -z "$left" ] || { echo "podman: containers are left: $left" >&2 && exit 1; }
    exit "$status"
}
trap finish EXIT

base=(podman --root "$dir/root" --runroot "$dir/run" --tmpdir "$dir/state" --cgroup-manager cgroupfs)
options=()
# The fastest storage driver, and an OCI runtime that can use the host's control groups: crun refuses hybrid ones.
works() {
    podman=("${base[@]}" --storage-driver overlay "${options[@]}")
    "${podman[@]}" image exists "$image" || "${podman[@]}" load --quiet --input "$dir/image" || return
    "${podman[@]}" run --rm --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$image" true
}
docker save --output "$dir/image" "$image"
found=
for runtime in crun runc; do
    for mount_program in '' fuse-overlayfs; do
        options=(--runtime "$runtime")
        [ -z "$mount_program" ] || options+=(--storage-opt "overlay.mount_program=$(command -v "$mount_program")") || continue
        if works >"$dir/why" 2>&1; then
            found=1
            break 2
        fi
    done
done
[ -n "$found" ] || { cat "$dir/why" >&2 && echo 'podman: no container starts' >&2 && exit 1; }
rm "$dir/image"
echo "podman: $("${podman[@]}" --version), options ${options[*]}" >&2

# In the directory of this run: Podman's monitors leave a file `oom` where the service was started.
(cd "$dir" && exec "${podman[@]}" system service --time=0 "unix://$dir/podman.sock") 2>"$dir/log" &
service=$!
for _ in {1..100}; do
    [ ! -S "$dir/podman.sock" ] || break
    sleep 0.1
done
ulimit -Sn "$(ulimit -Hn)"
TMPDIR="$dir/tmp" DOCKER_HOST="unix://$dir/podman.sock" \
    cargo test --locked --test e2e -- "${filters[@]}"
