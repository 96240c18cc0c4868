#!/usr/bin/env bash
# Installs an image's content into the root file system that this script runs in, as root. Called by the Dockerfile and
# by build.sh; never on a host.
#
#   install.sh install   packages of packages.lock (Debian), requirements.lock (PyPI) and package-lock.json (npm)
#   install.sh clean     removes what only the build needed
#
# This folder is /usr/share/skilld in the base image. In an image on top of it, it is the folder with the image's name
# beneath that, and its lists and locks hold what the image adds. LOCKED=0 ignores packages.lock and package-lock.json
# and writes new ones.
set -euo pipefail
cd "$(dirname "$0")"

readonly suite=trixie downloads=/var/cache/skilld snapshot=http://snapshot.debian.org/archive
readonly shared=/usr/share/skilld modules=/usr/local/lib/node_modules progress_interval=20
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export DEBIAN_FRONTEND=noninteractive
# Settings of the host, and of the image below, that mean nothing here. Proxies and PIP_INDEX_URL stay.
unset NODE_OPTIONS TMPDIR SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH VIRTUAL_ENV \
    PIP_CERT PIP_CONFIG_FILE PIP_FIND_LINKS PIP_PREFIX PIP_TARGET PIP_USER PIP_REQUIRE_VIRTUALENV

say() { printf 'image: %s\n' "$*" >&2; }

step() {
    local name=$1 start=$SECONDS
    shift
    "$@"
    say "  $name: $((SECONDS - start)) s"
}

is_base() { [ "$PWD" = "$shared" ]; }

# mmdebstrap keeps its archives in apt's own folder.
apt() {
    local folder=/var/cache/apt/archives
    is_base || folder=$downloads/archives
    apt-get -q -y -o Dir::Cache::archives="$folder" -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io \
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

# Passes apt's output on, and says every 20 s how far it is, also while one package takes its time.
show_progress() { # packages in all
    local line status next=$((SECONDS + progress_interval)) fetched=0 unpacked=0 ready=0
    while status=0 && { IFS= read -r -t "$progress_interval" line || status=$?; } && ((status == 0 || status > 128)); do
        # After a timeout the line is the start of one.
        if ((status == 0)); then
            echo "$line"
            case $line in
            Get:*) ((++fetched)) ;;
            'Unpacking '*) ((++unpacked)) ;;
            'Setting up '*) ((++ready)) ;;
            esac
        fi
        if ((SECONDS >= next)); then
            say "    Debian packages: $fetched downloaded, $unpacked unpacked, $ready set up, of $1 in all"
            next=$((SECONDS + progress_interval))
        fi
    done
}

list_installed() { dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' | sed -n 's/^installed //p' | sort; }

# A locked version has priority over every other one, also over an installed newer one. Where no source has it, apt takes
# the current version of the suite. Updates of a stable Debian are fixes, so a build does not fail on the day of one.
install_debian() {
    local packages all='an unknown number'
    if [ -s apt.conf ]; then export APT_CONFIG=$PWD/apt.conf; fi
    cp dpkg.cfg "/etc/dpkg/dpkg.cfg.d/${PWD##*/}"
    is_base || list_installed >"$downloads/installed"
    apt update
    if [ "${LOCKED:-1}" = 1 ]; then
        all=$(grep -vc '^#' packages.lock)
        awk -F= '!/^#/ { printf "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", $1, $2 }' packages.lock \
            >/etc/apt/preferences.d/skilld
        if [ -n "$(superseded)" ]; then add_snapshot; fi
    fi
    mapfile -t packages < <(grep -v '^#' packages.txt)
    # An image on top of another one changes no package of it, so both share the layer.
    ! is_base || apt --allow-downgrades dist-upgrade
    apt --no-install-recommends --allow-downgrades install "${packages[@]}" | show_progress "$all"
    apt autoclean
}

# Prints the installed packages that the image below does not have in the same version.
list_added() {
    if is_base; then list_installed; else comm -13 "$downloads/installed" <(list_installed); fi
}

# Compares the installed versions with the lock, and writes the file `superseded` if some differ; or writes the lock.
check_debian() {
    local changed
    if [ "${LOCKED:-1}" != 1 ]; then
        { echo "# Versions of all Debian packages that the image adds, written by make image-lock."
          echo "# snapshot: $(date -u +%Y%m%dT%H%M%SZ)"
          list_added | tr ' ' '='; } >packages.lock
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

# pip verifies the hash of every wheel, also of those from an earlier build. Nothing is built from source. The lock has
# all packages that are needed, but for those of the image below.
install_python() {
    local options=(--quiet --disable-pip-version-check --require-hashes --only-binary :all: --no-deps --requirement requirements.lock)
    # The image below has settings for commands, which have no network.
    export PIP_RETRIES=5
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

run_npm() {
    npm_config_userconfig=/nonexistent/user npm_config_globalconfig=/nonexistent/global npm_config_cache=$downloads/npm \
        /usr/bin/npm "$@" \
        --install-strategy shallow --legacy-peer-deps --ignore-scripts --prefer-offline --no-audit --no-fund --no-update-notifier --loglevel error
}

# Installs the packages of package.json for all programs, each with its dependencies in its own folder, as
# `npm install --global` does; package.json also names peers that they need. npm verifies the hash of every package. No
# script of a package runs.
install_node() {
    local project=$downloads/project name link
    if [ -e ca.crt ]; then export NODE_EXTRA_CA_CERTS=$PWD/ca.crt; fi
    mkdir -p "$project" "$modules"
    cp package*.json "$project/"
    (
        cd "$project"
        [ "${LOCKED:-1}" = 1 ] || run_npm install --package-lock-only --omit-lockfile-registry-resolved
        run_npm ci
    )
    [ "${LOCKED:-1}" = 1 ] || cp "$project/package-lock.json" .
    # npm takes packages for another C library and for WebAssembly, too. Source maps have 18 MB.
    find "$project/node_modules" \( -type d \( -name '*musl*' -o -name '*wasm32*' \) -o -type f -name '*.map' \) -prune -exec rm -r {} +
    while read -r name; do
        mkdir -p "$(dirname "$modules/$name")"
        mv --no-target-directory "$project/node_modules/$name" "$modules/$name"
    done < <(jq -r '.dependencies | keys[]' package.json)
    for link in "$project/node_modules/.bin"/*; do
        name=/usr/local/bin/${link##*/}
        [ -e "$name" ] || ln -s "../lib/node_modules/$(readlink "$link" | sed 's,^\.\./,,')" "$name"
    done
    rm -r "$project/node_modules/.bin" "$project/node_modules/.package-lock.json"
    link=$(find "$project/node_modules" ! -type d -print -quit)
    [ -z "$link" ] || { say "  npm left a package outside of those of package.json: $link" && return 1; }
}

# Compiled modules and font caches are valid for one time of the file or folder that they were made from. An image keeps
# no fractions of a second, and mmdebstrap replaces every time after its own start. So these files get an earlier one.
# Files of the image below have it and stay as they are, so both images share them.
make_caches() {
    local made
    find /usr/local/lib/python3*/dist-packages -name '*.py' -newermt 2000-01-02 -exec touch --date=2000-01-01 {} +
    python3 -m compileall -q -j 0 /usr/local/lib/python3*/dist-packages
    if command -v fc-cache >/dev/null; then
        made=$(find -L /usr/share/fonts /usr/local/share/fonts -type d -newermt 2000-01-02 -exec touch --date=2000-01-01 {} + -print)
        [ -z "$made" ] || fc-cache --system-only --force
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
    [ ! -e /usr/local/libexec/uv ] || return 0
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
    { cat "$shared/redirect_wheels.py" && cat <<'PYTHON'; } | python3 -I -
import pathlib

folder = pathlib.Path("/usr/share/skilld/wheels")
folder.mkdir(exist_ok=True)
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
    if [ -e package.json ]; then step 'Node.js packages' install_node; fi
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
    [ -e /usr/lib/locale/locale-archive ] || localedef --add-to-archive /usr/lib/locale/C.utf8
    # No setuid or setgid program is left: no-new-privileges makes them useless, and a missing one can't be attacked.
    find / -xdev -type f -perm /6000 -exec chmod a-s {} +
    rm -rf "$downloads" ca.crt apt.conf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* /root/.cache /tmp/* \
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
