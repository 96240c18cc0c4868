#!/usr/bin/env bash
# Installs an image's content into the root file system that this script runs in, as root. Called by the Dockerfile and
# by build.sh; never on a host.
#
#   install.sh install   Debian packages of packages.lock, then Python packages of requirements.lock
#   install.sh clean     removes what only the build needed
#
# This folder is /usr/share/skilld in the image. LOCKED=0 ignores packages.lock and writes a new one.
set -euo pipefail
cd "$(dirname "$0")"

readonly suite=trixie downloads=/var/cache/skilld snapshot=http://snapshot.debian.org/archive
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export DEBIAN_FRONTEND=noninteractive
# Settings of the host that mean nothing here. Proxies and PIP_INDEX_URL stay.
unset TMPDIR SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH VIRTUAL_ENV \
    PIP_CERT PIP_CONFIG_FILE PIP_FIND_LINKS PIP_PREFIX PIP_TARGET PIP_USER PIP_REQUIRE_VIRTUALENV

say() { printf 'image: %s\n' "$*" >&2; }

step() {
    local name=$1 start=$SECONDS
    shift
    "$@"
    say "  $name: $((SECONDS - start)) s"
}

apt() {
    apt-get -q -y -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io \
        -o APT::Keep-Downloaded-Packages=true "$@"
}

# Prints "package locked-version other-version" for each line "package version" of stdin that differs from the lock.
differences() {
    awk -F'[= ]' 'NR == FNR { if ($0 !~ /^#/) locked[$1] = $2; next } ($1 in locked) && locked[$1] != $2 { print $1, locked[$1], $2 }' \
        packages.lock -
}

# Prints the differences of the versions that apt would install. With the preferences below these are the locked
# versions that no source has any more.
superseded() { apt-cache dumpavail | awk '/^Package: / { name = $2 } /^Version: / { print name, $2 }' | differences; }

# Adds the state of Debian's archive at the time of the lock as a further source, if it can be reached.
add_snapshot() {
    local time list=/etc/apt/sources.list.d/skilld-snapshot.list
    time=$(sed -n 's/^# snapshot: //p' packages.lock)
    printf 'deb [check-valid-until=no] %s\n' "$snapshot/debian/$time $suite main" "$snapshot/debian/$time $suite-updates main" \
        "$snapshot/debian-security/$time $suite-security main" >"$list"
    apt update -o Dir::Etc::SourceList="$list" -o Dir::Etc::SourceParts=- -o APT::Get::List-Cleanup=0 \
        -o APT::Update::Error-Mode=any -o Acquire::Retries=0 -o Acquire::http::Timeout=10 || rm "$list"
}

# Passes apt's output on, and says after every 100 packages how far it is.
show_progress() {
    local line count=0
    while IFS= read -r line; do
        echo "$line"
        [[ $line != 'Unpacking '* ]] || ((++count % 100)) || say "    $count Debian packages are unpacked, of $1 in all"
    done
}

# A locked version has priority over every other one, also over an installed newer one. Where no source has it, apt takes
# the current version of the suite. Updates of a stable Debian are fixes, so a build does not fail on the day of one.
install_debian() {
    local packages all='an unknown number'
    cp dpkg.cfg /etc/dpkg/dpkg.cfg.d/skilld
    apt update
    if [ "${LOCKED:-1}" = 1 ]; then
        all=$(grep -vc '^#' packages.lock)
        awk -F= '!/^#/ { printf "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", $1, $2 }' packages.lock \
            >/etc/apt/preferences.d/skilld
        if [ -n "$(superseded)" ]; then add_snapshot; fi
    fi
    mapfile -t packages < <(grep -v '^#' packages.txt)
    apt --allow-downgrades dist-upgrade
    apt --no-install-recommends --allow-downgrades install "${packages[@]}" | show_progress "$all"
    apt autoclean
}

list_installed() { dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' | sed -n 's/^installed //p'; }

# Compares the installed versions with the lock, and writes the file `superseded` if some differ; or writes the lock.
check_debian() {
    local changed
    if [ "${LOCKED:-1}" != 1 ]; then
        { echo "# Versions of all Debian packages of the image, written by make image-lock."
          echo "# snapshot: $(date -u +%Y%m%dT%H%M%SZ)"
          list_installed | tr ' ' '='; } >packages.lock
        return
    fi
    changed=$(list_installed | differences)
    if [ -n "$changed" ]; then
        echo "$changed" >superseded
        say "  Debian packages whose locked version no mirror has any more: $(wc -l <<<"$changed")"
        while read -r name locked installed; do say "    $name: $installed instead of $locked"; done <<<"$changed"
        say '    make image-lock records the new versions'
    fi
}

# pip verifies the hash of every wheel, also of those from an earlier build. Nothing is built from source.
install_python() {
    local options=(--quiet --disable-pip-version-check --require-hashes --only-binary :all: --requirement requirements.lock)
    if [ -e ca.crt ]; then export PIP_CERT=$PWD/ca.crt; fi
    mkdir -p "$downloads/wheels" "$downloads/wheels.new"
    pip download "${options[@]}" --no-index --find-links "$downloads/wheels" --dest "$downloads/wheels.new" 2>/dev/null ||
        pip download "${options[@]}" --find-links "$downloads/wheels" --dest "$downloads/wheels.new"
    rm -r "$downloads/wheels"
    mv "$downloads/wheels.new" "$downloads/wheels"
    # Debian's mark for a Python that only apt may change is of no use in an image: a command that installs a package
    # into its own workspace would have to override it.
    rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
    pip install "${options[@]}" --no-index --find-links "$downloads/wheels" --ignore-installed --no-compile \
        --root-user-action ignore
}

# Compiled modules and font caches are valid for one time of the file or folder that they were made from. An image keeps
# no fractions of a second, and mmdebstrap replaces every time after its own start. So these files get an earlier one.
make_caches() {
    find /usr/local/lib/python3*/dist-packages -name '*.py' -exec touch --date=2000-01-01 {} +
    python3 -m compileall -q -j 0 /usr/local/lib/python3*/dist-packages
    if command -v fc-cache >/dev/null; then
        find -L /usr/share/fonts /usr/local/share/fonts -type d -exec touch --date=2000-01-01 {} +
        fc-cache --system-only --force
    fi
}

# Commands have no network, so pip, uv and npm do not try for seconds before they say so. An image that is built on this
# one and has a network sets UV_OFFLINE=0. pnpm reads npm's settings in the directory of Node.js.
configure_installers() {
    mkdir -p /usr/etc
    printf '%s\n' 'fetch-retries=0' 'audit=false' 'fund=false' 'update-notifier=false' | tee /etc/npmrc >/usr/etc/npmrc
    printf '%s\n' '[global]' 'disable-pip-version-check = true' 'retries = 0' >/etc/pip.conf
    mkdir -p /etc/uv
    printf '%s\n' 'offline = true' 'python-downloads = "never"' 'python-preference = "only-system"' >/etc/uv/uv.toml
}

# Makes `uv venv` in a command give the packages of the image to the environment, as `python3 -m venv` does there: the
# programs of a skill's .venv come first in each later command. uv has no setting for it.
wrap_uv() {
    mkdir -p /usr/local/libexec
    mv /usr/local/bin/uv /usr/local/libexec/uv
    cat >/usr/local/bin/uv <<'EOF'
#!/bin/sh
uv=/usr/local/libexec/uv
[ -n "${WORKSPACE_DIR-}" ] || exec $uv "$@"
case " $* " in *' --system-site-packages '*) exec $uv "$@" ;; esac
for argument; do
    case $argument in
    venv | virtualenv | v) set -- "$@" --system-site-packages && break ;;
    -*) ;;
    *) break ;;
    esac
done
exec $uv "$@"
EOF
    chmod 755 /usr/local/bin/uv
}

# Makes npm and npx take the packages of a workspace for installed, where commands have no network.
wrap_npm() {
    local tool
    [ -x /usr/bin/npm ] || return 0
    for tool in npm npx; do
        cat >/usr/local/bin/$tool <<'EOF'
#!/bin/sh
tool=${0##*/}
[ -n "${WORKSPACE_DIR-}" ] || exec "/usr/bin/$tool" "$@"
case "$tool ${1-}" in
"npm " | "npm run" | "npm run-script" | "npm test" | "npm t" | "npm start" | "npm -v" | "npm --version" | "npm ls")
    exec /usr/bin/npm "$@" ;;
esac
exec node /usr/share/skilld/npm_offline.js "$tool" "$@"
EOF
        chmod 755 /usr/local/bin/$tool
    done
}

# Writes wheels that hold no code and lead to the packages of the image. With them pip and uv find these packages in a
# virtual environment that does not see them.
write_wheels() {
    { cat redirect_wheels.py && cat <<'PYTHON'; } | python3 -I -
import pathlib

folder = pathlib.Path("wheels")
folder.mkdir()
found = list_distributions(sys.path)
directories = list(dict.fromkeys(item.directory for item in found.values()))
for name, item in found.items():
    write_redirect_wheel(folder, item, f"zz_skilld_image_{name}.pth", directories)
PYTHON
}

case ${1-} in
install)
    step 'Debian packages' install_debian
    check_debian
    step 'Python packages' install_python
    configure_installers
    wrap_uv
    wrap_npm
    if [ -e configure.sh ]; then step 'configuration' bash configure.sh; fi
    step 'wheels of the packages' write_wheels
    step 'caches' make_caches
    ;;
clean)
    # With an archive a program that sets its locale opens one file instead of looking for two dozen, which is a quarter
    # of bash's start where the root's storage driver is a program (fuse-overlayfs).
    localedef --add-to-archive /usr/lib/locale/C.utf8
    # No setuid or setgid program is left: no-new-privileges makes them useless, and a missing one can't be attacked.
    find / -xdev -type f -perm /6000 -exec chmod a-s {} +
    rm -rf "$downloads" ca.crt /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* /root/.cache /tmp/* \
        /etc/apt/preferences.d/skilld /etc/apt/sources.list.d/skilld-snapshot.list
    # Mount points of every container; Docker makes the others. runc 1.1 gives a tmpfs the mode of the directory that it
    # covers.
    mkdir -p /workspace /run/skilld
    chmod 1777 /workspace
    ;;
*)
    echo 'usage: install.sh install|clean' >&2
    exit 64
    ;;
esac
