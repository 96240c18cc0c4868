#!/usr/bin/env bash
# Makes ready what a target of the Makefile needs from the system. Nothing else installs packages of the system.
#
#   setup.sh rust|docker|python|prometheus|npm|tools|languages|mmdebstrap …
#
# As root on Debian or Ubuntu it installs the packages that are missing and starts Docker's engine, and prints a line for
# each of these steps. Other users, and everybody with SKILLD_SETUP=no, get the names of what is missing and the commands
# that help. An engine that runs, and one that DOCKER_HOST or a context of Docker names, are left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
# Debian has dockerd there, where not every user looks for programs.
PATH=$PATH:/usr/sbin:/sbin

packages=() missing=0
say() { printf 'setup: %s\n' "$*" >&2; }
advise() { printf 'missing: %s\n         %s\n' "$1" "$2" >&2; missing=1; }
has() { command -v "$1" >/dev/null; }

may_install() { [ "${SKILLD_SETUP-}" != no ] && [ "$(id -u)" = 0 ] && has apt-get; }

# Adds packages to those that are installed together, or says how to install them.
want() { # what is missing, packages …
    if may_install; then
        packages+=("${@:2}")
    else
        advise "$1" "Debian, Ubuntu: sudo apt-get install --no-install-recommends ${*:2}"
    fi
}

check_rust() {
    local wanted version
    if has cargo; then
        wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
        version=$(rustc --version | cut -d' ' -f2)
        [ "$(printf '%s\n' "$wanted" "$version" | sort -V | head -1)" = "$wanted" ] ||
            advise "Rust $wanted (this is $version)" 'rustup update stable'
    else
        advise 'cargo' 'install Rust from https://rustup.rs, or rustup from your distribution'
    fi
    has cc || want 'a C compiler' build-essential
}

# An engine that answers, or is not of this host, needs no package.
check_docker() {
    { has docker && { ! is_own_engine || answers; }; } || has dockerd || want "Docker's engine" docker.io iptables
}

# The tests make a virtual environment for foreign clients and install grpcio and buf into it, from PyPI.
check_python() { python3 -c 'import venv, ensurepip' 2>/dev/null || want 'python3 with venv' python3-venv; }

# The suite of foreign clients has a real Prometheus scrape the daemon and check the alerts.
check_prometheus() { { has prometheus && has promtool; } || want 'prometheus with promtool' prometheus; }

# The tests install an agent framework with it and copy its own folder into an image; Debian's package spreads npm's modules
# over the system.
check_npm() {
    has npm || advise 'npm' 'install Node.js from https://nodejs.org, which brings npm in one folder'
}

# Programs of the tests and their scripts.
check_tools() {
    has openssl || want 'openssl' openssl
    has pgrep || want 'pgrep' procps
    ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)) || advise 'bash 5.1' "this is $BASH_VERSION"
}

# Compilers, and the plugins and libraries that no registry of their language has, for the sample clients.
check_languages() {
    has go || want 'Go' golang-go
    { has javac && has mvn; } || want 'a JDK and Maven' default-jdk-headless maven
    { has g++ && has protoc && has grpc_cpp_plugin && has pkg-config && pkg-config --exists grpc++; } ||
        want 'gRPC for C++' g++ pkg-config protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev
    ruby -r grpc -r google/rpc/error_details_pb -e '' 2>/dev/null ||
        want 'gRPC for Ruby' ruby ruby-grpc ruby-googleapis-common-protos-types
    has php || want 'PHP' php-cli
    check_npm
    check_python
}

# Makes images where no registry answers. Other users than root need programs of uidmap for it.
check_mmdebstrap() {
    { has mmdebstrap && [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; } ||
        want 'mmdebstrap, which makes images where no registry answers' mmdebstrap debian-archive-keyring uidmap
}

install_packages() {
    local log
    log=$(mktemp)
    say "installing ${packages[*]} …"
    # An index that can't be fetched is a fault only if the packages are not found without it.
    apt-get update -qq >"$log" 2>&1 || true
    # Docker's client is a package of its own in newer releases of Debian.
    if [[ " ${packages[*]} " = *' docker.io '* ]] && ! has docker && apt-cache show docker-cli >/dev/null 2>&1; then
        packages+=(docker-cli)
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "${packages[@]}" >>"$log" 2>&1 ||
        { tail -n 20 "$log" >&2; rm -f "$log"; say "apt-get could not install ${packages[*]}; its last lines are above"; return 1; }
    rm -f "$log"
    # Its tests start one of their own; the service of the package listens on all addresses.
    if is_systemd && [[ " ${packages[*]} " = *' prometheus '* ]]; then systemctl disable --now --quiet prometheus; fi
}

answers() { timeout 60 docker version >/dev/null 2>&1; }

is_systemd() { [ -d /run/systemd/system ]; }

# Returns 0 if Docker's client talks to the engine of this host.
is_own_engine() {
    [ -z "${DOCKER_HOST-}" ] && [[ $(docker context inspect --format '{{.Name}}' 2>/dev/null || echo default) = default ]]
}

start_engine() {
    local start=$SECONDS why
    why=$(timeout 60 docker version 2>&1 >/dev/null) && return
    why=${why%%$'\n'*}
    if [[ $why = *'permission denied'* ]]; then
        advise 'permission to use Docker' "sudo usermod -aG docker $(id -un), then log in again; or work as root"
    elif ! is_own_engine; then
        advise "an answer from the Docker that you chose ($why)" 'start it, or unset DOCKER_HOST and run docker context use default'
    elif [ "${SKILLD_SETUP-}" = no ] || [ "$(id -u)" != 0 ]; then
        advise "an answer from Docker ($why)" 'start it: sudo systemctl start docker, or sudo tests/engine.sh start'
    else
        if is_systemd; then
            say "starting Docker's engine: systemctl start docker"
            { systemctl start docker && answers; } || { journalctl --unit docker --lines 20 --no-pager >&2 || true; return 1; }
        else
            say "starting Docker's engine; its log is /var/log/skilld-dockerd.log, its process id in /var/run/docker.pid"
            tests/engine.sh start
        fi
        say "$(docker info --format 'Docker {{.ServerVersion}} answers: {{.Driver}}, cgroup v{{.CgroupVersion}}') after $((SECONDS - start)) s"
    fi
}

# Make runs several of these scripts at once, but the system has one package manager. Its lock is beside apt's own.
if may_install; then
    exec 9>/var/lock/skilld-setup
    flock 9
fi
for need in "$@"; do "check_$need"; done
((${#packages[@]} == 0)) || install_packages
if [[ " $* " = *' docker '* ]] && ((missing == 0)); then start_engine; fi
exit "$missing"
