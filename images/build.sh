#!/usr/bin/env bash
# Makes the image skilld/IMAGE:latest from the lists in images/IMAGE. Run by `make image`; does nothing when the image
# is up to date, which a label with the hash of all inputs says.
#
#   build.sh IMAGE          installs the versions of its locks: packages.lock, requirements.lock, package-lock.json
#   build.sh --lock IMAGE   installs the current versions and, if that succeeds, writes these files
#
# install.sh installs everything. An image on top of another one is a container of that, whose changes become one layer;
# the image below is built first. The base image is made in one of two places:
#
#   1. a registry answers: in debian:trixie-slim, by the Dockerfile.
#   2. otherwise in a minimal Debian that mmdebstrap makes.
#
# SKILLD_IMAGE_FROM=registry or =mmdebstrap forces one of them for the base image. Downloads, but those of a Dockerfile, are kept in
# ~/.cache/skilld/images for the next build.
# Single quotes: mmdebstrap and apt-get expand what is in them.
# shellcheck disable=SC2016
set -euo pipefail
cd "$(dirname "$0")"

readonly suite=trixie python=3.13
readonly registry_base=debian:$suite-slim pull_timeout=60
# The hash of all inputs; the number of Debian packages that have another version than packages.lock says.
readonly label=io.skilld.image.inputs superseded_label=io.skilld.image.superseded
build_method=${SKILLD_IMAGE_FROM:-any}

say() { printf 'image: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

locked=1
if [ "${1-}" = --lock ]; then locked=0 && shift; fi
readonly locked name=${1:-base}
case $name in
office) below=(base) ;;
web) below=(office base) ;;
*) below=() ;;
esac
readonly below parent=${below[0]-}
if [ -n "$parent" ]; then build_method=parent; fi
[ -e "$name/packages.txt" ] ||
    die "there is no images/$name/packages.txt: the images are $(echo */packages.txt | sed 's,/packages.txt,,g')"
# The process id keeps builds of two users apart; those of one user wait for each other, see below.
readonly image=skilld/$name:latest draft=skilld/$name-draft:$$ layers=skilld/$name-layers:$$
readonly container=skilld-$name-layers-$$ folder=/usr/share/skilld${parent:+/$name}
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/skilld/images/$name

work=$(mktemp -d "${TMPDIR:-/tmp}/skilld-image.XXXXXX")
readonly cache work context=$work/context log=$work/log

finish() {
    trap '' EXIT INT TERM
    rm -rf "$work"
    { docker rm --force "$container"; docker rmi "$layers"; docker rmi --no-prune "$draft"; } >/dev/null 2>&1 || true
}
trap finish EXIT
trap 'exit 130' INT TERM

# Runs a step, prints its duration and, if it fails, the end of its output. Lines that begin with "image:" are shown at
# once. A function that is a step must check its commands: errexit does not hold in a condition.
step() {
    local title=$1 start=$SECONDS
    shift
    say "$title …"
    : >"$log"
    if ! "$@" 2>&1 | tee "$log" | { grep --line-buffered '^image: ' >&2 || true; }; then
        tail -n 30 "$log" | grep -v '^image: ' >&2 || true
        return 1
    fi
    say "$title: $((SECONDS - start)) s"
}

# A new lock needs no file of the old one.
make_context() {
    local file
    mkdir "$context"
    cp install.sh "$name/packages.txt" "$context/"
    if [ -z "$parent" ]; then
        cp Dockerfile base/*.js ../daemon/src/environments/redirect_wheels.py "$context/"
    fi
    for file in dpkg.cfg configure.sh package.json settings; do
        if [ -e "$name/$file" ]; then cp "$name/$file" "$context/"; fi
    done
    if [ "$locked" = 1 ]; then copy_locks "$name" "$context"; fi
}

copy_locks() { # from, to
    local file
    for file in packages.lock requirements.lock package-lock.json; do
        if [ -e "$1/$file" ]; then cp "$1/$file" "$2/"; fi
    done
}

read_label() { docker image inspect -f "{{index .Config.Labels \"$1\"}}" "skilld/$2:latest" 2>/dev/null || true; }

hash_inputs() {
    { (cd "$context" && sha256sum -- *) && sha256sum build.sh && { [ -z "$parent" ] || docker image inspect -f "{{.Id}}" "skilld/$parent:latest"; }; } |
        sha256sum | cut -d' ' -f1
}

# The certificates that the host trusts: a proxy between this host and PyPI may have one of its own.
add_certificates() {
    local file
    for file in "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt; do
        if [ -s "$file" ]; then cp "$file" "$context/ca.crt" && return; fi
    done
}

# Prints the mirror that this host uses for "" or "-security" if it is a Debian, else the official one.
mirror() {
    local host uri=
    # shellcheck disable=SC1091
    host=$(. /etc/os-release 2>/dev/null && echo "${ID:-}:${VERSION_CODENAME:-}") || host=
    if [[ $host == debian:?* ]]; then
        uri=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
            awk -v release="${host#debian:}$1" '$1 == release && $2 == "main" && !uri { uri = $3 }
                END { print uri }') || uri=
    fi
    echo "${uri:-http://deb.debian.org/debian$1}"
}

# Prints the image's settings from the Dockerfile, and from its own file, as options of docker import and commit.
list_settings() {
    local files=(Dockerfile)
    if [ -e "$context/settings" ]; then files+=("$context/settings"); fi
    cat "${files[@]}" | sed -nE 's/^(ENV|WORKDIR|USER|CMD) /--change=&/p'
}

# Prints the host's settings for apt: its proxy is needed to get the packages and must not stay in the image.
list_apt_settings() { apt-config dump 2>/dev/null | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until) "..*";$' || true; }

# Makes the draft of the image in a chroot, which shares this host's network. mmdebstrap runs the hooks without a shell
# of ours, so they get the directories of the cache as relative paths.
run_mmdebstrap() {
    local main security proxy options=() settings
    main=$(mirror "") security=$(mirror -security)
    proxy=$(list_apt_settings)
    [ -z "$proxy" ] || options+=(--aptopt="$proxy")
    mkdir -p "$cache/archives" "$cache/wheels" "$work/archives" "$work/wheels"
    options+=(
        --setup-hook='mkdir -p "$1/var/cache/apt/archives" "$1/var/cache/skilld/wheels" "$1/usr/share/skilld"'
        --setup-hook="sync-in $cache/archives /var/cache/apt/archives"
        --setup-hook="sync-in $cache/wheels /var/cache/skilld/wheels"
        --setup-hook="sync-in $context /usr/share/skilld"
        --skip=essential/unlink --skip=download/empty --skip=cleanup/run
        --customize-hook="LOCKED=$locked chroot \"\$1\" bash /usr/share/skilld/install.sh install >&2"
        --customize-hook='rm -rf "$1/var/cache/apt/archives/partial" "$1/var/cache/apt/archives/lock"'
        --customize-hook="sync-out /var/cache/apt/archives $work/archives"
        --customize-hook="sync-out /var/cache/skilld/wheels $work/wheels"
        --customize-hook='chroot "$1" bash /usr/share/skilld/install.sh clean >&2'
        --customize-hook='rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"'
    )
    mapfile -t settings < <(list_settings)
    mmdebstrap --variant=minbase --dpkgopt="$context/dpkg.cfg" "${options[@]}" "$suite" - \
        "deb $main $suite main" "deb $main $suite-updates main" "deb $security $suite-security main" |
        docker import "${settings[@]}" - "$draft" || return 1
    # What this build did not need is not kept.
    rm -rf "$cache/archives" "$cache/wheels"
    mv "$work/archives" "$work/wheels" "$cache/"
}

# The draft is one layer of what the build left. Of the layers of the build, the first has this host's certificates.
run_docker_build() { # base image
    local settings
    mapfile -t settings < <(list_settings)
    docker build --build-arg "BASE=$1" --build-arg "LOCKED=$locked" --tag "$layers" "$context" &&
        docker create --name "$container" "$layers" &&
        docker export "$container" | docker import "${settings[@]}" - "$draft"
}

# Runs a function of install.sh in the container. The settings of the host are in the file that the container's command
# runs, since those of the container would stay in the image.
run_in_container() { # install|clean
    local names='^((https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY|PIP_(EXTRA_)?INDEX_URL|PIP_TRUSTED_HOST|npm_config_registry)$' name
    {
        printf 'LOCKED=%q\n' "$locked"
        for name in $(compgen -e | grep -E "$names"); do printf '%s=%q\n' "$name" "${!name}"; done
        printf 'export LOCKED %s\n' "$(compgen -e | grep -E "$names" | tr '\n' ' ')"
        printf 'rm /run/skilld-build\nbash %q %q\n' "$folder/install.sh" "$1"
    } >"$work/skilld-build"
    docker cp "$work/skilld-build" "$container:/run/skilld-build" && docker start --attach "$container"
}

# Makes the draft of the image in a container of the image below.
run_on_parent() {
    local settings installed=1
    mapfile -t settings < <(list_settings)
    list_apt_settings >"$context/apt.conf"
    mkdir -p "$cache/archives" "$cache/wheels" "$cache/npm"
    docker create --name "$container" --user 0:0 --network host "skilld/$parent:latest" bash /run/skilld-build &&
        docker cp "$context" "$container:$folder" &&
        docker cp "$cache" "$container:/var/cache/skilld" || return 1
    run_in_container install || installed=0
    # A build that fails keeps its downloads, too. What it did not need is not kept.
    docker cp "$container:/var/cache/skilld" "$work/downloads" || return 1
    rm -rf "$cache/archives" "$cache/wheels" "$cache/npm" "$work/downloads/archives/partial" "$work/downloads/archives/lock"
    mv "$work/downloads/archives" "$work/downloads/wheels" "$work/downloads/npm" "$cache/" || return 1
    [ "$installed" = 1 ] &&
        run_in_container clean &&
        docker commit "${settings[@]}" "$container" "$draft"
}

from_parent() { step "install in skilld/$parent:latest" run_on_parent; }

# packages.lock names the digest of the base image if a registry answered when it was written.
from_registry() {
    local base=
    if [ "$locked" = 1 ]; then base=$(sed -n 's/^# base: //p' "$context/packages.lock"); fi
    base=${base:-$registry_base}
    step "pull $base (at most $pull_timeout s)" timeout "$pull_timeout" docker pull --quiet "$base" &&
        step "install in $base" run_docker_build "$base" || return 1
    base_digest=$(docker image inspect -f '{{join .RepoDigests "\n"}}' "$base" | head -n 1)
}

from_mmdebstrap() {
    ../tests/setup.sh mmdebstrap || { say 'then run make image again' && return 1; }
    step "make a Debian $suite with mmdebstrap" run_mmdebstrap
}

# Writes requirements.lock: exact versions, with the hashes of their wheels for every platform. Packages of the images
# below have the version of their locks and are left out. The uv that does it is that of the base image's lock.
lock_python() {
    local lower omitted=()
    for lower in "${below[@]}"; do sed -nE 's/^([^ #]+==[^ ;]+).*/\1/p' "$lower/requirements.lock"; done >"$work/constraints"
    mapfile -t omitted < <(sed 's/==.*//; s/^/--no-emit-package=/' "$work/constraints")
    python3 -m venv "$work/venv" &&
        "$work/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
            --requirement base/requirements.lock &&
        "$work/venv/bin/uv" pip compile --quiet --no-header --generate-hashes --only-binary :all: --upgrade \
            --python-version "$python" --constraint "$work/constraints" "${omitted[@]}" \
            --output-file "$context/requirements.lock" "$name/requirements.in"
}

# Reads a file that install.sh wrote in the draft; prints nothing if it does not exist.
read_draft() { docker run --rm --network none "$draft" bash -c "cd $folder && [ ! -e $1 ] || cat $1"; }

command -v docker >/dev/null || die "docker is missing: install it (Debian, Ubuntu: apt-get install docker.io)"
docker version >/dev/null 2>&1 || die "docker does not answer: is it running, and are you root or in the group docker?"

[ -z "$parent" ] || ./build.sh "$parent"

# One build at a time. A second one then finds the image up to date.
mkdir -p "$cache"
exec 9<"$cache"
flock --nonblock 9 || { say "waiting for another build of $image" && flock 9; }

make_context
if [ "$locked" = 0 ]; then
    step "lock the Python packages of $image" lock_python || die "could not lock the Python packages"
fi
inputs=$(hash_inputs)
if [ "$locked" = 1 ] && [ "$(read_label "$label" "$name")" = "$inputs" ]; then
    say "$image is up to date"
    superseded=$(read_label "$superseded_label" "$name")
    [ -z "$superseded" ] ||
        say "  Debian packages whose locked version no mirror had: $superseded;" \
            "make image-lock IMAGE=$name records the new versions"
    exit 0
fi

add_certificates
old=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null) || old=
base_digest=
case $build_method in
parent) from_parent ;;
registry) from_registry ;;
mmdebstrap) from_mmdebstrap ;;
any) from_registry || { say "no image from a registry; making one here" && from_mmdebstrap; } ;;
*) die "SKILLD_IMAGE_FROM is registry or mmdebstrap, not '$build_method'" ;;
esac || die "could not make $image; the reason is above"
superseded=
if [ "$locked" = 0 ]; then
    read_draft packages.lock >"$context/packages.lock"
    [ -z "$base_digest" ] || sed -i "1a # base: $base_digest" "$context/packages.lock"
    [ ! -e "$context/package.json" ] || read_draft package-lock.json >"$context/package-lock.json"
    rm -f "$context/ca.crt" "$context/apt.conf"
    inputs=$(hash_inputs)
    copy_locks "$context" "$name"
else
    superseded=$(read_draft superseded | wc -l)
    if [ "$superseded" = 0 ]; then superseded=; fi
fi
# An image has the labels of the one below, unless it sets them.
docker build --quiet --label "$label=$inputs" --label "$superseded_label=$superseded" --tag "$image" - <<<"FROM $draft" >/dev/null 2>"$log" ||
    { cat "$log" >&2 && exit 1; }
# The image that was replaced is removed, unless a container still runs on it.
[ -z "$old" ] || docker rmi "$old" >/dev/null 2>&1 || true
say "$image: $(docker image inspect -f '{{.Size}}' "$image" | numfmt --to=iec) in $SECONDS s"
