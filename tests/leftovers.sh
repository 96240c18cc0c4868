#!/usr/bin/env bash
# Proves that a run left nothing: no container, image, mount, loop device, process, socket or file. Used by tests/run.sh and the demo.
#
#   leftovers.sh --before       prints the ids of skilld's containers and unused volumes, to be given to the second call
#   leftovers.sh DIR IDS        fails and names what is left, or removes DIR and says that nothing is
#
# DIR was TMPDIR while the run lasted. Ours is what has it in a path or in its environment, and every new container
# of a skilld whose slot does not lie elsewhere: a daemon that runs on this host for somebody else is left out.
# Not to be called with DIR as its own TMPDIR.
set -euo pipefail

containers() {
    docker ps --all --quiet --no-trunc --filter label=io.skilld.instance
    docker ps --all --quiet --no-trunc --filter label=io.skilld.test
}
unused_volumes() { docker volume ls --quiet --filter label=io.skilld.instance --filter dangling=true; }

is_ours() { # container id
    ! grep -qxF "$1" <<<"$before" || return 1
    local sources source
    sources=$(docker inspect -f '{{range .Mounts}}{{.Source}}{{"\n"}}{{end}}' "$1" 2>/dev/null) || return 1
    while read -r source; do
        [[ -z $source || $source == "$dir"/* || $source == "$PWD"* || ! -e $source ]] || return 1
    done <<<"$sources"
}

left() {
    local id kind file pid
    for id in $(containers); do
        ! is_ours "$id" || docker inspect -f 'container {{.Name}} ({{.State.Status}})' "$id"
    done
    docker images --filter "label=io.skilld.test=$dir" --format 'image {{.Repository}}:{{.Tag}} {{.ID}}'
    unused_volumes | { grep -vxF "$before" || true; } | sed 's/^/volume /'
    docker network ls --quiet --filter label=io.skilld.instance | sed 's/^/network /'
    awk -v dir="$dir/" 'index($5, dir) == 1 { print "mount", $5 }' /proc/self/mountinfo
    awk -v dir="$dir/" 'index($0, dir) == 1 { print "loop device over", $0 }' /sys/block/loop*/loop/backing_file 2>/dev/null || true
    awk -v dir="$dir/" 'index($8, dir) == 1 { print "socket", $8 }' /proc/net/unix | sort -u
    # Whatever may not be looked at belongs to somebody else, or is in a container of the list above.
    for file in $(grep -lzxF "TMPDIR=$dir" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${file//[^0-9]/}
        echo "process $pid: $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")"
    done
    # With some of the content, which tells whose it is.
    find "$dir" -mindepth 1 -printf 'file %p\n' | sed -n 1,20p
}

if [ "${1-}" = --before ]; then
    containers
    unused_volumes
    exit
fi
readonly dir=$1 before=$2

# What was just told to end may need a moment, and a busy machine many of them.
for _ in {1..240}; do
    found=$(left)
    [ -n "$found" ] || break
    sleep 0.5
done
if [ -n "$found" ]; then
    printf 'left behind: %s\n' "${found//$'\n'/$'\nleft behind: '}" >&2
    exit 1
fi
rmdir "$dir"
echo 'no container, image, mount, loop device, process or socket left'
