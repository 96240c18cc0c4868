#!/usr/bin/env bash
# Packs skilld, installs each package and uses what it installed. Run by `make test-packages`, which builds what it needs.
#
#   the tarball    its checksums and SBOM, and that packing it again gives the same bytes; its files, as those of the deb
#   the unit       its exposure by systemd-analyze
#   the manifests  against schemas and parsers; neither Kubernetes nor Nomad runs here
#   the deb        in a container that runs systemd and a Docker of its own: tests/packages/systemd.sh
#   the image      as docs/deploy.md says, with a state directory of the test
#   compose.yaml   its service skilld; Prometheus' and Grafana's images need a registry
#
# What a host can't run is named and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${BIN:?is set by make}" "${GUEST:?is set by make}" "${TARGET:?is set by make}"
readonly exposure_max=40 venv=$TARGET/packages-venv
before=$(tests/leftovers.sh --before)
# Short, since the paths of sockets end at 107 bytes.
dir=$(mktemp -d /tmp/skp.XXXXXX)
export TMPDIR=$dir
readonly before dir state=$dir/state

say() { printf 'packages: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

finish() {
    local code=$?
    set +e
    trap '' EXIT INT TERM
    docker ps --all --quiet --filter "label=io.skilld.test=$dir" | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
    for id in $(docker ps --all --quiet --filter label=io.skilld.instance); do
        ! docker inspect -f '{{json .Mounts}}' "$id" | grep -qF "$dir/" || docker rm --force --volumes "$id" >/dev/null
    done
    rm -rf "${dir:?}"/*
    env -u TMPDIR tests/leftovers.sh "$dir" "$before" || code=1
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

step() {
    local name=$1 start=$SECONDS
    shift
    say "$name …"
    "$@"
    say "$name: $((SECONDS - start)) s"
}

# Asks until it is so, for at most 300 s.
until_so() {
    local deadline=$((SECONDS + 300))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "waited 300 s for: $*"
        sleep 0.1
    done
}

skillctl() { "$BIN/skillctl" --endpoint "unix:$dir/run/skilld.sock" "$@"; }
is_warm() { skillctl pool list | grep -qE '^default +1/1'; }

pack() {
    local package version
    version=$("$BIN/skilld" --version | cut -d ' ' -f 2)
    for package in deb dist image; do deploy/package.sh "$package"; done
    deb=$(echo "$TARGET/dist/skilld_${version}_"*.deb) tarball=$(echo "$TARGET/dist/skilld-$version-"*.tar.gz) sbom=${tarball%.tar.gz}.cdx.json
}

# The programs have no symbols, and the links of the documents lead to what is shipped.
check_files() { # directory
    local program
    for program in "$1"/usr/bin/*; do
        readelf --wide --sections "$program" >"$dir/sections"
        ! grep -qF .symtab "$dir/sections" || fail "$program is not stripped"
    done
    tests/docs.sh "$1/usr/share/doc/skilld"
    rm -r "$1"
}

check_tarball() {
    (cd "$TARGET/dist" && sha256sum --check --quiet SHA256SUMS)
    local sums file
    sums=$(<"$TARGET/dist/SHA256SUMS")
    deploy/package.sh dist 2>/dev/null
    [ "$sums" = "$(<"$TARGET/dist/SHA256SUMS")" ] || fail 'packing again gives other bytes'
    tar --extract --gzip --directory "$dir" --file "$tarball" --strip-components 1 --one-top-level=tarball
    "$dir/tarball/usr/bin/skilld" --version >/dev/null
    for file in LICENSE README.md etc/skilld/skilld.toml usr/lib/skilld/skilld-guest usr/lib/systemd/system/skilld.service \
        usr/share/skilld/{skilld.binpb,service-config.json,proto/buf.yaml,proto/skilld/v1/exec.proto,samples/client.py}; do
        [ -s "$dir/tarball/$file" ] || fail "the tarball lacks $file"
    done
    check_files "$dir/tarball"
    dpkg-deb --extract "$deb" "$dir/deb"
    check_files "$dir/deb"
}

check_unit() {
    command -v systemd-analyze >/dev/null || { say 'skipped: systemd-analyze is not installed'; return; }
    systemd-analyze security --offline=true --threshold="$exposure_max" --no-pager deploy/skilld.service >"$dir/exposure" ||
        fail "the unit is too exposed: $(tail -n 1 "$dir/exposure")"
    tail -n 1 "$dir/exposure" | sed 's/^[^O]*/packages: /' >&2
}

make_venv() {
    if ! cmp --silent tests/packages/requirements.txt "$venv/requirements.txt"; then
        python3 -m venv --clear "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement tests/packages/requirements.txt
        cp tests/packages/requirements.txt "$venv/"
    fi
}

check_manifests() {
    make_venv
    "$venv/bin/python" -B tests/packages/check_formats.py "$sbom" deploy/nomad/skilld.nomad.hcl
    "$venv/bin/kubernetes-validate" --strict --quiet deploy/kubernetes/skilld.yaml
    if command -v promtool >/dev/null; then
        promtool check config deploy/prometheus/prometheus.yml >/dev/null
        promtool check rules deploy/prometheus/rules/skilld.yml >/dev/null
    else
        say 'skipped: promtool is not installed (Debian: prometheus)'
    fi
    say 'not run: Kubernetes and Nomad; their manifests were parsed and checked against schemas only'
}

# Makes the image of a Debian with systemd and Docker, of the release that this host runs: the programs are linked against
# its libraries. It is kept for the next run.
make_debian() { # release
    local packages=systemd,systemd-sysv,docker.io,passwd label=io.skilld.packages
    [ "$(docker image inspect -f "{{index .Config.Labels \"$label\"}}" "skilld/debian-test:$1" 2>/dev/null)" != "$packages" ] || return 0
    mmdebstrap --variant=minbase --include="$packages" "$1" - 2>"$dir/log" | docker import - "skilld/debian-draft:$$" >/dev/null ||
        { tail -n 30 "$dir/log" >&2 && return 1; }
    docker build --quiet --label "$label=$packages" --tag "skilld/debian-test:$1" - <<<"FROM skilld/debian-draft:$$" >/dev/null 2>&1
    docker rmi --no-prune "skilld/debian-draft:$$" >/dev/null
}

# systemd needs rights over its own control groups, and nothing of the host's: it has namespaces of its own. Not
# --privileged, which fails where this host itself lacks a capability.
start_systemd() { # image
    # shellcheck disable=SC2016
    local remount='for mount in $(grep -oE "/sys/fs/cgroup\S* cgroup" /proc/mounts | cut -d" " -f1); do
        mount -o remount,rw,bind $mount; done; exec /sbin/init'
    docker run --detach --name "skilld-debian-$$" --label "io.skilld.test=$dir" --env container=docker \
        --cap-add ALL --cap-drop SYS_RESOURCE --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
        --security-opt systempaths=unconfined --cgroupns private --network none --tmpfs /run:exec --tmpfs /run/lock --tmpfs /tmp \
        --volume /var/lib/docker --volume /var/lib/containerd --volume "$PWD/skills:/srv/skills:ro" \
        "$1" sh -c "$remount" >/dev/null
}

check_deb() {
    local release in=(docker exec --interactive "skilld-debian-$$")
    # shellcheck disable=SC1091
    release=$(. /etc/os-release 2>/dev/null && [ "$ID" = debian ] && echo "$VERSION_CODENAME") ||
        { say 'skipped: this host is no Debian, so its programs may not run in one'; return; }
    tests/setup.sh mmdebstrap || { say 'skipped: mmdebstrap is not installed'; return; }
    make_debian "$release"
    start_systemd "skilld/debian-test:$release"
    until_so "${in[@]}" docker info
    docker save skilld/base:latest | "${in[@]}" docker load >/dev/null
    "${in[@]}" sh -c 'cat >/root/skilld.deb' <"$deb"
    "${in[@]}" bash -s <tests/packages/systemd.sh
    docker rm --force --volumes "skilld-debian-$$" >/dev/null
}

# What a client does, with a daemon in a container.
use_daemon() {
    until_so is_warm
    [ "$(stat --format %u:%g:%a "$dir/run/skilld.sock")" = 0:65534:660 ] || fail 'the socket does not belong to its group'
    skillctl workspace create --id w >/dev/null
    skillctl stage w --skill text-stats README.md=inputs/notes.md >/dev/null
    skillctl exec w --skill text-stats scripts/text-stats.sh inputs/notes.md >/dev/null || fail 'a skill does not run'
    skillctl exec w 'grep -qE ":(cpu)?:/commands$" /proc/self/cgroup' || fail 'commands have no CPU group of their own'
}

# Prints a block of docs/deploy.md or a compose file with places of this test instead of the host's.
localize() {
    sed -E "s#/var/lib/skilld#$state#g; s#/run/skilld:#$dir/run:#; s#/etc/skilld:#$dir/etc:#; s#/srv/skills:#$PWD/skills:#;
        s#getent group skilld#getent group nogroup#; s#(skilld/daemon)\$#\1:${deb_version:?}#"
}

make_places() {
    deb_version=$(dpkg-deb --field "$deb" Version)
    mkdir -p "$dir/etc" "$dir/run"
    cat >"$dir/etc/skilld.toml" <<END
state_dir = "$state"
listen = "unix:/run/skilld/skilld.sock"
[skills]
roots = ["/srv/skills"]
[pools.default]
warm = 1
[pools.office]
warm = 0
max = 0
END
}

check_image() {
    local name=skilld-image-$$ command
    make_places
    command=$(awk '/^```/ { block = 0 } block; /^### Start it/ { here = 1 } here && /^```sh/ { block = 1; here = 0 }' docs/deploy.md |
        localize | sed "s#--name skilld#--name $name --label io.skilld.test=$dir#")
    bash -euc "$command" >/dev/null
    use_daemon
    docker restart "$name" >/dev/null
    until_so skillctl server info
    skillctl exec w true || fail 'a workspace does not survive the restart of its daemon'
    docker exec "$name" skillctl workspace list | grep -q w || fail 'skillctl does not run in the container'
    skillctl drain --remove >/dev/null
    docker rm --force "$name" >/dev/null
    rm -rf "$state"
}

# Compose of before 2.17 does not know `cgroup`, which is then the host's on cgroup v1.
check_compose() {
    local compose
    if docker compose version >/dev/null 2>&1; then
        compose=(docker compose) drop='^$'
    elif command -v docker-compose >/dev/null; then
        compose=(docker-compose) drop='^ *cgroup: host$'
        say 'docker-compose is older than compose.yaml: tested without its line "cgroup: host"'
    else
        say 'skipped: Docker Compose is not installed'
        return
    fi
    make_places
    sed -E "/$drop/d; s#image: skilld/daemon#&\n    labels: [\"io.skilld.test=$dir\"]#" deploy/compose.yaml | localize >"$dir/compose.yaml"
    printf 'SKILLD_GROUP=65534\nGRAFANA_PASSWORD=secret\n' >"$dir/env"
    compose+=(--project-name "skilld-test-$$" --env-file "$dir/env" --file "$dir/compose.yaml")
    "${compose[@]}" config >/dev/null
    "${compose[@]}" up -d skilld 2>"$dir/log" || { cat "$dir/log" >&2; fail 'compose.yaml does not start'; }
    use_daemon
    skillctl drain --remove >/dev/null
    "${compose[@]}" down --volumes 2>/dev/null
    rm -rf "$state"
    say 'not run: Prometheus and Grafana of compose.yaml, whose images need a registry'
}

step 'pack a deb, a tarball and an image' pack
step 'the tarball' check_tarball
step 'the unit' check_unit
step 'SBOM and manifests' check_manifests
step 'the deb, on systemd' check_deb
step 'the image' check_image
step 'compose.yaml' check_compose
say "every package installs and works: $SECONDS s"
