#!/usr/bin/env bash
# Proves what the images promise, offline, in containers configured as tightly as a workspace's.
#
# Usage: tests/images.sh [IMAGE …]    base, office, web; without a name base, and the others if they are up to date
#
# It ends with the example of docs/images.md, which needs skilld/base, python3 with venv, and a wheel from PyPI.
#
# docs/images.md has the times of the builds.
set -euo pipefail
cd "$(dirname "$0")/.."
label=io.skilld.test=images-$$
work=$(mktemp -d "${TMPDIR:-/tmp}/skilld-images.XXXXXX")

fail() { echo "images: $*" >&2; exit 1; }
exists() { docker image inspect "$1" >/dev/null 2>&1; }

finish() {
    docker ps --all --quiet --filter "label=$label" | xargs --no-run-if-empty docker rm --force >/dev/null
    docker images --quiet --filter "label=$label" | sort -u | xargs --no-run-if-empty docker rmi --force >/dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Runs a container in the background, since bash handles a signal only when a foreground process has ended.
run() {
    docker run --rm --init --network none --label "$label" "$@" </dev/null &
    wait $!
}

# Limits and mounts are the daemon's defaults. The environment is that of a command: the image's own variables but PATH,
# and those of the daemon.
as_workspace() {
    local variables
    mapfile -t variables < <(docker image inspect -f '{{range .Config.Env}}{{println .}}{{end}}' "$1" | grep -v -E '^(PATH=|$)')
    run --security-opt seccomp=daemon/src/engine/seccomp/v2.json --user 200001:200001 --read-only --cap-drop ALL --security-opt no-new-privileges --memory 512m --memory-swap 512m \
        --pids-limit 512 --tmpfs /tmp:exec,size=64m,mode=1777 --tmpfs /workspace:exec,size=256m,mode=1777 "$1" \
        env -i "${variables[@]}" HOME=/workspace/work LANG=C.UTF-8 TMPDIR=/tmp PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin \
        "${@:2}"
}

list_layers() { docker image inspect -f '{{join .RootFS.Layers "\n"}}' "skilld/$1:latest"; }

# The last layer of an image is its own, and the others are those of the image below it.
adds_one_layer() { # base|office|web
    local below=
    case $1 in office) below=base ;; web) below=office ;; esac
    [ "$(list_layers "$1" | head -n -1)" = "$([ -z "$below" ] || list_layers "$below")" ]
}

check() { # base|office|web
    local image=skilld/$1:latest left
    exists "$image" || fail "$image does not exist: make image IMAGE=$1"
    echo "images: $image"
    [ "$(docker image inspect -f '{{len .Config.Volumes}} {{.Config.User}}' "$image")" = '0 65534:65534' ] ||
        fail "$image declares a VOLUME or runs as root"
    adds_one_layer "$1" || fail "$image is not one layer on the present image below it: make image IMAGE=$1"
    # Only root can look into every folder.
    left=$(run --user 0 "$image" find / -xdev -type f -perm /6000)
    [ -z "$left" ] || fail "$image has setuid or setgid programs: $left"
    as_workspace "$image" bash -c "$(<tests/image-checks.sh)" image-checks "$1" || fail "$image lacks what is listed above"
}

# The example of docs/images.md, built without a network from a wheel of PyPI.
check_example() {
    local start=$SECONDS id
    exists skilld/base:latest || fail 'skilld/base:latest does not exist, from which the example is built: make image'
    cp -r images/example "$work/"
    # A label of the command line is the last image's only. The first stage would stay.
    sed -i "/^FROM .* AS install$/a LABEL $label" "$work/example/Dockerfile"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" --quiet --disable-pip-version-check download --no-deps --only-binary :all: --require-hashes \
        --requirement "$work/example/requirements.txt" --dest "$work/example/wheels"
    docker build --network none --label "$label" --quiet --iidfile "$work/id" "$work/example" >/dev/null 2>"$work/log" ||
        fail "the example does not build: $(<"$work/log")"
    id=$(<"$work/id")
    as_workspace "$id" python3 -c 'import tabulate; print(tabulate.tabulate([[1]]))' >/dev/null ||
        fail 'the example lacks its package'
    echo "images: the example is built and works: $((SECONDS - start)) s"
}

images=("$@")
if ((${#images[@]} == 0)); then
    images=(base)
    for image in office web; do
        if exists "skilld/$image:latest" && adds_one_layer "$image"; then
            images+=("$image")
        else
            echo "images: skipped: skilld/$image:latest does not exist, or was built on an older image, and is not checked: make image IMAGE=$image"
        fi
    done
fi
for image in "${images[@]}"; do check "$image"; done
check_example
echo "images: ${images[*]} hold what they promise: $SECONDS s"
