#!/usr/bin/env bash
# What an administrator does with the Debian package, in a Debian that runs systemd and Docker. tests/packages.sh runs
# this in a container, with the package and the image skilld/base there.
set -euo pipefail

readonly package=/root/skilld.deb config=/etc/skilld/skilld.toml

fail() {
    echo "packages: in Debian: $*" >&2
    journalctl --unit skilld --no-pager --lines 30 >&2 || true
    exit 1
}
trap 'fail "line $LINENO failed"' ERR
# Asks until it is so, for at most 300 s.
until_so() {
    local deadline=$((SECONDS + 300))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "waited 300 s for: $*"
        sleep 0.1
    done
}
is() { # what is expected, command
    local expected=$1 got
    shift
    got=$("$@" 2>&1) || true
    [ "$got" = "$expected" ] || fail "$* prints '$got', not '$expected'"
}
containers() { docker ps --all --quiet --filter label=io.skilld.instance | wc -l; }
is_warm() { skillctl pool list | grep -qE '^default +1/1'; }

# Installed: what is needed is there, and nothing runs yet.
dpkg --install "$package" >/dev/null
is inactive systemctl is-active skilld
is disabled systemctl is-enabled skilld
is 'skilld:200000:65536' grep '^skilld:' /etc/subuid
is '' dpkg --verify skilld
skilld --check >/tmp/defaults
skilld --config $config --check | cmp - /tmp/defaults || fail 'the installed configuration changes something'
sed 's/^#\([^ ]\)/\1/' $config >/tmp/all.toml
skilld --config /tmp/all.toml --check | cmp - /tmp/defaults || fail 'the commented keys are not the defaults'
bash -c 'source /usr/share/bash-completion/completions/skilld && source /usr/share/bash-completion/completions/skillctl &&
    complete -p skilld skillctl' >/dev/null
for page in man8/skilld.8 man1/skillctl.1 man1/skillctl-workspace-create.1; do
    zgrep -q '^\.TH' /usr/share/man/$page.gz || fail "no page $page"
done

# Configured and started, and every restriction of the unit leaves it what it needs.
printf '\n[pools.default]\nwarm = 1\nmax = 4\n[pools.office]\nwarm = 0\nmax = 0\n[skills]\nroots = ["/srv/skills"]\n' >>$config
systemctl enable --now --quiet skilld
until_so is_warm
is 'root:skilld 660' stat --format '%U:%G %a' /run/skilld/skilld.sock
is 'root:skilld 750' stat --format '%U:%G %a' /run/skilld
is 'root 700' stat --format '%U %a' /var/lib/skilld
is 'no problems' skillctl problems
is '-- No entries --' journalctl --unit skilld --grep 'WARN|ERROR' --no-pager
is w skillctl workspace create --id w
skillctl exec w 'grep -qE ":(cpu)?:/commands$" /proc/self/cgroup' || fail 'commands have no CPU group of their own'
if [ -d /sys/fs/cgroup/memory/docker ]; then
    # An eighth of the memory, on cgroup v1.
    cat /sys/fs/cgroup/memory/docker/*/memory.kmem.tcp.limit_in_bytes | grep -qx 67108864 || fail 'socket buffers are not limited'
fi
skillctl stage w --skill text-stats $config=inputs/notes.txt >/dev/null
skillctl exec w --skill text-stats scripts/text-stats.sh inputs/notes.txt >/dev/null || fail 'a skill does not run'
# Users: the members of the group, and no others.
useradd --groups skilld member && useradd stranger
setpriv --reuid member --regid member --init-groups --reset-env skillctl workspace list >/dev/null || fail 'a member may not use skilld'
{ setpriv --reuid stranger --regid stranger --init-groups --reset-env skillctl workspace list 2>&1 || true; } |
    grep -qi 'permission denied' || fail 'a stranger may use skilld'

# A wrong configuration ends the start, and is not tried again.
cp $config /tmp/right.toml
echo 'colour = "red"' >>$config
systemctl restart skilld 2>/dev/null || true
until_so systemctl is-failed skilld
is 64 systemctl show --property ExecMainStatus --value skilld
cp /tmp/right.toml $config

# An upgrade keeps configuration and workspaces, and restarts what ran.
systemctl reset-failed skilld
systemctl start skilld
skillctl server info >/dev/null || fail 'systemctl start returns before the daemon serves'
systemctl reload skilld
is active systemctl is-active skilld
is SERVING skillctl health
id=$(skillctl exec w -d --id sleeper sleep 1000)
[ -n "$id" ] || fail 'no exec was started'
before=$(systemctl show --property MainPID --value skilld)
dpkg --install "$package" >/dev/null 2>&1
until_so skillctl server info
[ "$before" != "$(systemctl show --property MainPID --value skilld)" ] || fail 'an upgrade does not restart the daemon'
cmp --silent $config /tmp/right.toml || fail 'an upgrade changes the configuration'
skillctl ps w | grep -q sleeper || fail 'an upgrade ends commands'

# Removed: configuration, state and workspaces stay until it is installed again.
until_so is_warm
dpkg --remove skilld >/dev/null 2>&1
for path in /usr/bin/skilld /usr/lib/skilld /run/skilld; do [ ! -e $path ] || fail "a removal leaves $path"; done
for path in $config /var/lib/skilld/instance; do [ -e "$path" ] || fail "a removal takes $path"; done
[ "$(containers)" = 2 ] || fail "a removal leaves $(containers) containers, not 2"
dpkg --install "$package" >/dev/null 2>&1
systemctl start skilld
until_so skillctl server info
skillctl ps w | grep -q sleeper || fail 'workspaces do not survive a removal'

# Purged: nothing is left.
dpkg --purge skilld >/dev/null 2>&1
left=$(ls -d /etc/skilld /var/lib/skilld /run/skilld /usr/lib/skilld /etc/systemd/system/*/skilld.service 2>/dev/null) || true
left+=$(grep '^skilld:' /etc/subuid) || true
[ -z "$left" ] || fail "a purge leaves $left"
[ "$(containers)" = 0 ] || fail "a purge leaves $(containers) containers"

# Another user's uids are not taken away.
echo 'bob:231072:65536' >/etc/subuid
dpkg --install "$package" 2>&1 | grep -q 'uids from 200000 on belong to bob' || fail "bob's uids are taken"
is '' grep '^skilld:' /etc/subuid
