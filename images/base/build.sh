#!/usr/bin/env bash
# Makes the image skilld/base:latest. Run by `make image`; does nothing when the image is up to date.
#
#   1. up to date: the image carries a label with the hash of the files in this folder.
#   2. a registry answers: debian:trixie-slim is pulled and the Dockerfile installs packages.txt with apt.
#   3. otherwise mmdebstrap makes a Debian with packages.txt in it, and the Dockerfile runs on that, offline.
#
# SKILLD_BASE_FROM=registry or =mmdebstrap forces one way.
set -euo pipefail
cd "$(dirname "$0")"

readonly image=skilld/base:latest suite=trixie
readonly registry_base=debian:$suite-slim local_base=skilld/debian-build:$suite
readonly label=io.skilld.base.inputs pull_timeout=60
way=${SKILLD_BASE_FROM:-any}

say() { printf 'image: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Runs a step and says how long it took.
step() {
    local name=$1 start=$SECONDS
    shift
    say "$name …"
    "$@" || return 1
    say "$name: $((SECONDS - start)) s"
}

# The mirror that this host uses for "" or "-security" where it is a Debian, else the official one.
mirror() {
    local host uri=
    # shellcheck disable=SC1091
    host=$(. /etc/os-release 2>/dev/null && echo "${ID:-}:${VERSION_CODENAME:-}") || host=
    if [[ $host == debian:?* ]]; then
        uri=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
            awk -v release="${host#debian:}$1" '$1 == release && $2 == "main" && !uri { uri = $3 } END { print uri }') || uri=
    fi
    echo "${uri:-http://deb.debian.org/debian$1}"
}

install_mmdebstrap() {
    local packages='mmdebstrap debian-archive-keyring'
    command -v apt-get >/dev/null || die "no registry answers: install $packages, then run make image again"
    [ "$(id -u)" = 0 ] ||
        die "no registry answers: run 'sudo apt-get install $packages uidmap', then make image again"
    # An index that can't be fetched is only a fault if the packages are not found without it.
    apt-get update -qq >&2 || true
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2
}

make_local_base() {
    local main security proxy options=() path
    main=$(mirror "") security=$(mirror -security)
    # The same files are left out as in debian:*-slim.
    for path in doc/\* man/\* info/\* locale/\* lintian/\*; do options+=(--dpkgopt="path-exclude=/usr/share/$path"); done
    options+=(--dpkgopt='path-include=/usr/share/doc/*/copyright')
    # The host's proxy is needed to get the packages and is nobody's business afterwards.
    proxy=$(apt-config dump 2>/dev/null | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until) "..*";$') || proxy=
    [ -z "$proxy" ] || options+=(--aptopt="$proxy")
    options+=(--customize-hook='rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"')
    mmdebstrap --variant=minbase --include="$(grep -v '^#' packages.txt | paste -sd,)" "${options[@]}" "$suite" - \
        "deb $main $suite main" "deb $main $suite-updates main" "deb $security $suite-security main" |
        docker import - "$local_base" >&2
}

build() { docker build --label "$label=$inputs" --tag "$image" "$@" . >&2; }

from_registry() {
    step "pull $registry_base (at most $pull_timeout s)" timeout "$pull_timeout" docker pull --quiet "$registry_base" >&2 &&
        step "build $image" build --build-arg "BASE=$registry_base"
}

from_mmdebstrap() {
    { command -v mmdebstrap >/dev/null && [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; } ||
        step 'install mmdebstrap' install_mmdebstrap || return 1
    step "make a Debian $suite with mmdebstrap" make_local_base &&
        step "build $image" build --network none --build-arg "BASE=$local_base" || return 1
    # The layers stay, as the image's own; the name was only for the Dockerfile.
    docker rmi --no-prune "$local_base" >/dev/null
}

command -v docker >/dev/null || die "docker is missing: install it (Debian, Ubuntu: apt-get install docker.io)"
docker version >/dev/null 2>&1 || die "docker does not answer: is it running, and are you root or in the group docker?"

inputs=$(sha256sum Dockerfile build.sh packages.txt | sha256sum | cut -d' ' -f1)
if [ "$(docker image inspect -f "{{index .Config.Labels \"$label\"}}" "$image" 2>/dev/null)" = "$inputs" ]; then
    say "$image is up to date"
    exit 0
fi

old=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null) || old=
case $way in
registry) from_registry ;;
mmdebstrap) from_mmdebstrap ;;
any) from_registry || { say "no image from a registry; making one here" && from_mmdebstrap; } ;;
*) die "SKILLD_BASE_FROM is registry or mmdebstrap, not '$way'" ;;
esac || die "could not make $image; the reason is above"
# What the new image replaces goes, unless a container still runs on it.
[ -z "$old" ] || docker rmi "$old" >/dev/null 2>&1 || true
say "$image: $(docker image inspect -f '{{.Size}}' "$image" | numfmt --to=iec) in $SECONDS s"
