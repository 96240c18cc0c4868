//! Guests whose workspace is at `/workspace`, as in a container, so that commands of clients run. Needs root.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Name of the program that [`write_mounting_guest`] writes.
pub(crate) const MOUNTING_GUEST: &str = "mounting-guest";
/// Program that the engine starts in place of the guest. It makes a root directory with the entries of this host and the
/// workspace, in a mount namespace of its own, and executes the guest there. The workspace is missing while the marker
/// file exists.
const SCRIPT: &str = r#"#!/bin/sh
exec unshare --mount sh -euc '
    guest=$1 marker=$2 workspace=$6
    shift 2
    root=$PWD/fake-root
    mkdir -p "$root"
    mount -t tmpfs none "$root"
    for entry in /*; do
        if [ "$entry" = /workspace ]; then
            continue
        elif [ -L "$entry" ]; then
            cp -P "$entry" "$root"
        elif [ -d "$entry" ]; then
            mkdir "$root$entry"
            mount --rbind "$entry" "$root$entry"
        fi
    done
    if [ ! -e "$marker" ]; then
        mkdir "$root/workspace"
        mount --bind "$workspace" "$root/workspace"
    fi
    exec chroot "$root" "$guest" "$@"
' sh '{guest}' '{marker}' "$@"
"#;

/// Writes the program, which executes `guest`, into a directory. Returns its path, for `engine.guest_path`.
pub(crate) fn write_mounting_guest(dir: &Path, guest: &Path) -> PathBuf {
    let program = dir.join(MOUNTING_GUEST);
    let canonical = guest.canonicalize().expect("a guest");
    let is_hidden = |path: &Path| path.starts_with("/workspace");
    assert!(
        !is_hidden(&canonical) && !is_hidden(dir),
        "the guests of these tests have a /workspace of their own: move the target directory and TMPDIR elsewhere"
    );
    let text = SCRIPT
        .replace("{guest}", &canonical.display().to_string())
        .replace("{marker}", &marker_file(dir).display().to_string());
    std::fs::write(&program, text).expect("write");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("chmod");
    program
}

/// Lets later guests of the program in this directory find no workspace at `/workspace`.
pub(crate) fn hide_workspaces(dir: &Path) {
    std::fs::write(marker_file(dir), "").expect("write");
}

fn marker_file(dir: &Path) -> PathBuf {
    dir.join("without-workspace")
}
