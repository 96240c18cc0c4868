#!/usr/bin/env bash
# Removes the state directory of a daemon that does not run, and the containers that only it knew.
# Usage: tests/clean.sh DIR
set -euo pipefail
dir=$1
if [ -s "$dir/instance" ] && command -v docker >/dev/null; then
    docker ps -aq --filter "label=io.skilld.instance=$(head -n 1 "$dir/instance")" | xargs -r docker rm -fv >/dev/null
fi
rm -rf "$dir"
