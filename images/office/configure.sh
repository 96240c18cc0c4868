#!/usr/bin/env bash
# Settings of skilld/office. Called by install.sh when all packages are installed.
set -euo pipefail

# Debian's policy keeps ImageMagick from reading PDF and PostScript files, against hostile files on a server. Here the
# container is the sandbox.
policy=/etc/ImageMagick-7/policy.xml
sed -i -E '/domain="coder"/ s/rights="none" pattern="(PS|PS2|PS3|EPS|PDF|XPS)"/rights="read|write" pattern="\1"/' "$policy"
! grep -E '^[^!]*rights="none" pattern="(PS|EPS|PDF)"' "$policy"

# The root is read-only at run time, so caches are made here.
fc-cache --system-only --force
