#!/usr/bin/env bash
# Packs the programs that `make build guest` made:
#
#   package.sh deb     target/dist/skilld_VERSION_ARCH.deb
#   package.sh dist    target/dist/skilld-VERSION-ARCH.tar.gz, its SBOM, and SHA256SUMS over all of that version
#   package.sh image   the image skilld/daemon:VERSION, which is also skilld/daemon:latest
#
# The same programs make the same packages: files have the time of the last commit (or SOURCE_DATE_EPOCH), root as their
# owner and a fixed order.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

: "${BIN:?is set by make}" "${GUEST:?is set by make}" "${TARGET:?is set by make}"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
work=$(mktemp -d "${TMPDIR:-/tmp}/skilld-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
readonly version work root=$work/root log=$work/log dist=$TARGET/dist

say() { printf 'package: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Every key of the default configuration, as a comment.
print_config() {
    cat <<'END'
# Remove the # before a key to change it, and the # before the [section] above it.

END
    sed 's/^[^#]/#&/' daemon/default.toml
}

add_programs() {
    install -D -m 755 --strip -t "$root/usr/bin" "$BIN/skilld" "$BIN/skillctl"
    install -D -m 755 "$GUEST" "$root/usr/lib/skilld/skilld-guest"
    install -d "$root/etc/skilld"
    print_config >"$root/etc/skilld/skilld.toml"
    add_api
}

# What clients in other languages are made from: docs/languages.md.
add_api() {
    local share=$root/usr/share/skilld
    install -D -m 644 -t "$share/proto/skilld/v1" proto/skilld/v1/*.proto
    install -m 644 proto/buf.yaml "$share/proto/"
    install -m 644 proto/skilld.binpb docs/service-config.json "$share/"
    cp -r docs/samples "$share/"
}

# The files of the Debian package and of the tarball.
add_all() {
    local share=$root/usr/share
    add_programs
    install -D -m 644 deploy/skilld.service "$root/usr/lib/systemd/system/skilld.service"
    install -d "$share"/{man/man1,man/man8,bash-completion/completions,doc/skilld/examples}
    "$BIN/skilld" --completion bash >"$share/bash-completion/completions/skilld"
    "$BIN/skillctl" completion bash >"$share/bash-completion/completions/skillctl"
    "$BIN/skilld" --man-page >"$share/man/man8/skilld.8"
    "$BIN/skillctl" man-pages "$share/man/man1"
    gzip -9n "$share"/man/man?/*
    # The documents, and what they link to.
    cp -r --parents -t "$share/doc/skilld" ./*.md LICENSE docs skills client/tools/examples tests/bench/results
    ln -s ../../skilld/proto "$share/doc/skilld/proto"
    cp LICENSE "$share/doc/skilld/copyright"
    cp -r deploy/compose.yaml deploy/systemd deploy/prometheus deploy/grafana deploy/kubernetes deploy/nomad "$share/doc/skilld/examples/"
}

set_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

# Prints the packages of the libraries that the programs load, with the versions that they need.
list_dependencies() {
    mkdir "$work/debian"
    printf 'Source: skilld\n\nPackage: skilld\nArchitecture: any\n' >"$work/debian/control"
    # It warns that the programs are not in the directory of a source package.
    (cd "$work" && dpkg-shlibdeps -O root/usr/bin/* 2>"$log") | sed -n 's/^shlibs:Depends=//p'
}

make_deb() {
    command -v dpkg-shlibdeps >/dev/null || die 'dpkg-shlibdeps is missing: install it (Debian, Ubuntu: apt-get install dpkg-dev)'
    local arch package depends
    arch=$(dpkg --print-architecture)
    package=$dist/skilld_${version}_$arch.deb
    add_all
    depends=$(list_dependencies) || { cat "$log" >&2 && exit 1; }
    install -d "$root/DEBIAN"
    install -m 755 -t "$root/DEBIAN" deploy/debian/{postinst,prerm,postrm}
    echo /etc/skilld/skilld.toml >"$root/DEBIAN/conffiles"
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    cat >"$root/DEBIAN/control" <<END
Package: skilld
Version: $version
Architecture: $arch
Maintainer: The skilld authors <packages@skilld.dev>
Installed-Size: $(du --summarize --apparent-size --block-size=1K --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends, passwd
Recommends: docker.io | docker-ce | podman (>= 4.3), ca-certificates
Suggests: bash-completion, e2fsprogs
Section: admin
Priority: optional
Description: runs Agent Skills in warm, locked-down containers
 A daemon that keeps containers ready in which LLM agents run the commands and
 scripts of their skills on a user's files, its command line skillctl, and the
 process that is PID 1 of every container. It needs Docker 20.10 or Podman 4.3,
 or later.
END
    set_times "$root"
    # Higher levels take three times as long for a sixth of the size.
    dpkg-deb --build --root-owner-group -Zxz -z1 "$root" "$package" >/dev/null
    say "$package"
}

make_dist() {
    local name
    name=skilld-$version-$(uname -m)
    add_all
    cp LICENSE "$root/"
    # Its links are relative to the documents.
    ln -s usr/share/doc/skilld/README.md "$root/README.md"
    mv "$root" "$work/$name"
    set_times "$work/$name"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$work" "$name" |
        gzip -9n >"$dist/$name.tar.gz"
    python3 deploy/sbom.py "$version" >"$dist/$name.cdx.json"
    # The Debian package too, if it was made.
    (cd "$dist" && find . -name "skilld[-_]${version}[-_]*" -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
    say "$dist/$name.tar.gz, its SBOM and SHA256SUMS"
}

# The programs that make the file systems of workspaces on disk.
add_disk_programs() {
    local name program
    for name in mkfs.ext4 debugfs losetup; do
        program=$(PATH=$PATH:/usr/sbin:/sbin command -v "$name") || die "$name is missing: install e2fsprogs and util-linux"
        install -D -m 755 "$(readlink -f "$program")" "$root/usr/sbin/$name"
    done
}

# The libraries are those of this host, with which the programs were linked. glibc loads the last three only to look up
# names; since 2.34 it has them built in.
add_libraries() {
    local libc file
    ldd "$BIN/skilld" "$BIN/skillctl" "$root"/usr/sbin/* | grep -oE '/[^ ]+' | grep -vE ':$' | sort -u >"$work/libraries"
    libc=$(grep '/libc\.so' "$work/libraries")
    for file in "${libc%/*}"/lib{nss_files,nss_dns,resolv}.so.2; do
        if [ -e "$file" ]; then echo "$file" >>"$work/libraries"; fi
    done
    xargs cp --dereference --parents --target-directory "$root" <"$work/libraries"
}

# The authorities of Debian's package; the host's own file may have a proxy's certificate as well.
add_authorities() {
    install -d "$root/etc/ssl/certs"
    if [ -d /usr/share/ca-certificates/mozilla ]; then
        cat /usr/share/ca-certificates/mozilla/*.crt
    else
        cat /etc/ssl/certs/ca-certificates.crt
    fi >"$root/etc/ssl/certs/ca-certificates.crt"
}

make_image() {
    local name=skilld/daemon old
    old=$(docker image inspect -f '{{.Id}}' "$name:latest" 2>/dev/null) || old=
    add_programs
    add_disk_programs
    add_libraries
    add_authorities
    echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
    echo 'root:x:0:0:root:/root:/usr/sbin/nologin' >"$root/etc/passwd"
    cp deploy/Dockerfile "$root/"
    printf '%s\n' Dockerfile .dockerignore >"$root/.dockerignore"
    set_times "$root"
    docker build --quiet --label "org.opencontainers.image.version=$version" --label org.opencontainers.image.licenses=Apache-2.0 \
        --tag "$name:$version" --tag "$name:latest" "$root" >/dev/null 2>"$log" || { cat "$log" >&2 && exit 1; }
    # The image that was replaced is removed, unless a container or another tag still has it.
    [ -z "$old" ] || docker rmi "$old" >/dev/null 2>&1 || true
    say "$name:$version: $(docker image inspect -f '{{.Size}}' "$name:$version" | numfmt --to=iec)"
}

mkdir -p "$root" "$dist"
case ${1-} in
deb | dist | image) "make_$1" ;;
*) die "package.sh deb, dist or image, not '${1-}'" ;;
esac
