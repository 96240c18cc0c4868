#!/usr/bin/env bash
# Builds the wheel of the Python package and prints its path.
#
#   wheel.sh release|dev [DIRECTORY]      (default: target/wheels)
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly profile=${1:?release or dev} maturin=1.16.0
target=${CARGO_TARGET_DIR:-$PWD/target}
# Variables that a test which calls this has from cargo and its runner. Build scripts that read them would run again, and
# most crates would be compiled again, here and in the next build of the workspace.
unset RUSTC_BOOTSTRAP CARGO CARGO_MANIFEST_DIR CARGO_MANIFEST_PATH "${!CARGO_PKG_@}"
export CARGO_TARGET_DIR=$target
directory=${2:-$target/wheels}
tools=$target/python-tools-$maturin
# Several builds may begin at once.
mkdir -p "$target"
exec 9>"$target/python-tools.lock"
flock 9
if [ ! -x "$tools/bin/maturin" ]; then
    python3 -m venv --clear "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "maturin==$maturin"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$tools/bin/maturin" build --locked --profile "$profile" --manifest-path client/python/Cargo.toml --out "$directory" \
    >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
sed -n 's/^.*Built wheel .* to \(.*\.whl\)$/\1/p' "$log" | tail -n 1
