#!/usr/bin/env bash
# Runs the functional and the security suite on gVisor, where Docker has its runtime `runsc` registered
# (docs/gvisor.md says how), but for the tests of gvisor-differences.txt.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

runtimes=$(docker info --format '{{json .Runtimes}}') || exit 1
if [[ $runtimes != *'"runsc"'* ]]; then
    echo 'gvisor: skipped: Docker has no runtime runsc' >&2
    exit 0
fi
mapfile -t tests < <(cargo test --locked --quiet --test e2e -- --list |
    sed -n 's/^\(\(functional\|security\)::.*\): test$/\1/p' | grep -vxFf <(grep '::' tests/gvisor-differences.txt))
((${#tests[@]} > 0)) || exit 1

# Two at a time: each container is a kernel of its own. What hangs there must not hang the suite.
SKILLD_TEST_OCI_RUNTIME=runsc timeout --kill-after=10 3600 \
    cargo test --locked --test e2e -- --test-threads=2 --exact "${tests[@]}"
