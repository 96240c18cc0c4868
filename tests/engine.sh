#!/usr/bin/env bash
# Starts and ends a Docker engine on a machine where no service manager does.
#
#   engine.sh start [DIR]   starts the host's engine, or one with all of its files beneath DIR, and waits for its answer
#   engine.sh stop [DIR]    ends the engine that `start` started, and its containers; removes the mounts beneath DIR
#
# The host's engine has its log in /var/log/skilld-dockerd.log and its process id in /var/run/docker.pid; that of DIR
# has `log` and `docker.pid` there, and answers at unix://DIR/docker.sock. It shares nothing with the host's engine but
# the kernel and, where one runs as a service, containerd; it has no network. DIR is short, since the paths of sockets end
# at 107 bytes.
set -euo pipefail

readonly answer_timeout_s=180 stop_timeout_s=180
# Process id of the engine of the host that this script started. `stop` ends no other one.
readonly started=/var/run/skilld-dockerd.pid
action=${1-} dir=${2-}
if [ -n "$dir" ]; then
    export DOCKER_HOST=unix://$dir/docker.sock
    log=$dir/log pid_file=$dir/docker.pid exec_root=$dir/exec
    # Not /etc/docker/daemon.json, which is for the host's engine and may repeat an option.
    arguments=(--config-file "$dir/config.json" --data-root "$dir/data" --exec-root "$exec_root" --pidfile "$pid_file"
        --host "$DOCKER_HOST" --bridge none --iptables=false)
else
    log=/var/log/skilld-dockerd.log pid_file=/var/run/docker.pid exec_root=/var/run/docker
    arguments=()
fi
readonly action dir log pid_file exec_root arguments

# An engine without answer is waited for by the callers below, which have a deadline of their own.
answers() { timeout 60 docker version >/dev/null 2>&1; }

# Returns 0 if the process that a file names runs, is not a zombie, and has this name.
names_running() { # file, name
    local pid comm state
    pid=$(cat "$1" 2>/dev/null) && { read -r _ comm state _ <"/proc/$pid/stat"; } 2>/dev/null || return 1
    [ "$comm" = "($2)" ] && [ "$state" != Z ]
}

# A killed engine leaves its files of process ids. dockerd refuses to start while any process has the number in its file,
# and waits in vain for a containerd whose number another program has.
remove_stale_pid_files() {
    names_running "$pid_file" dockerd || rm -f "$pid_file"
    names_running "$exec_root/containerd/containerd.pid" containerd || rm -f "$exec_root/containerd/containerd.pid"
}

# Runs dockerd in a session of its own and without a descriptor of ours: a reader of this script's output, or a make that
# counts its jobs by a pipe, would wait for it otherwise.
launch() {
    local fd
    for fd in "/proc/$BASHPID/fd/"*; do
        fd=${fd##*/}
        ((fd <= 2)) || eval "exec $fd>&-"
    done
    exec setsid dockerd "${arguments[@]}" >"$log" 2>&1 </dev/null
}

start() {
    local deadline=$((SECONDS + answer_timeout_s)) engine
    ! answers || return 0
    [ -z "$dir" ] || { mkdir -p "$dir" && { [ -e "$dir/config.json" ] || echo '{}' >"$dir/config.json"; }; }
    remove_stale_pid_files
    launch &
    engine=$!
    until answers; do
        if ! kill -0 "$engine" 2>/dev/null || ((SECONDS >= deadline)); then
            kill "$engine" 2>/dev/null || true
            echo "Docker's engine gave no answer; the end of $log:" >&2
            tail -n 20 "$log" >&2
            return 1
        fi
        sleep 0.2
    done
    [ -n "$dir" ] || cp "$pid_file" "$started"
}

# Returns 0 once the process has ended, 1 after the timeout.
await_end() { # pid
    local deadline=$((SECONDS + stop_timeout_s))
    while kill -0 "$1" 2>/dev/null && ! grep -q '^State:\sZ' "/proc/$1/status" 2>/dev/null; do
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
}

stop() {
    local pid mount
    if [ -z "$dir" ] && ! cmp --silent "$pid_file" "$started"; then return; fi
    if names_running "$pid_file" dockerd; then
        pid=$(<"$pid_file")
        kill "$pid"
        await_end "$pid" || { echo "Docker's engine (process $pid) did not end within $stop_timeout_s s" >&2 && return 1; }
    fi
    [ -n "$dir" ] || { rm -f "$started" && return 0; }
    # The deepest first.
    awk -v dir="$dir/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
        while read -r mount; do umount --lazy "$mount"; done
}

case $action in
start | stop) "$action" ;;
*) sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,10p >&2 && exit 2 ;;
esac
