#!/usr/bin/env bash
# Says what is missing on this machine, and what to do about it, before anything fails obscurely.
# Usage: tests/preflight.sh rust|docker|python|prometheus …
set -euo pipefail

missing=0
say() { printf 'missing: %s\n         %s\n' "$1" "$2" >&2; missing=1; }

need_rust() {
    command -v cargo >/dev/null || { say 'cargo' 'install Rust from https://rustup.rs, or rustup from your distribution'; return; }
    local want have
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
    have=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$want" "$have" | sort -V | head -1)" = "$want" ] ||
        say "Rust $want (this is $have)" 'rustup update stable'
    command -v cc >/dev/null || say 'a C linker' 'Debian, Ubuntu: sudo apt-get install build-essential'
}

need_docker() {
    command -v docker >/dev/null || { say 'docker' 'Debian, Ubuntu: sudo apt-get install docker.io'; return; }
    local why
    why=$(timeout 20 docker version 2>&1 >/dev/null) && return
    case $why in
    *'permission denied'*) say 'permission to use Docker' "sudo usermod -aG docker $(id -un), then log in again; or work as root" ;;
    *) say "an answer from Docker (${why%%$'\n'*})" 'start it: sudo systemctl start docker; DOCKER_HOST names another one' ;;
    esac
}

# The tests make a virtual environment for foreign clients and install grpcio and buf into it, from PyPI.
need_python() {
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        say 'python3 with venv' 'Debian, Ubuntu: sudo apt-get install python3-venv'
}

# The suite of foreign clients has a real Prometheus scrape the daemon and check the alerts.
need_prometheus() {
    { command -v prometheus && command -v promtool; } >/dev/null ||
        say 'prometheus with promtool' 'Debian, Ubuntu: sudo apt-get install --no-install-recommends prometheus'
}

for need in "$@"; do "need_$need"; done
exit "$missing"
