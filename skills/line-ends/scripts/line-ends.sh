#!/usr/bin/env bash
# Tells which line ends text files have, and writes clean copies. See ../SKILL.md.
set -euo pipefail
export LC_ALL=C

fix=no
if [ "${1-}" = --fix ]; then
    fix=yes
    shift
fi
if [ $# = 0 ]; then
    echo 'usage: line-ends.sh [--fix] FILE [FILE ...]' >&2
    exit 2
fi
out=${OUTPUT_DIR:-out} code=0
for file in "$@"; do
    if [ ! -f "$file" ] || [ ! -r "$file" ]; then
        echo "line-ends: $file is no file that can be read" >&2
        exit 3
    fi
    found=$(gawk '
        NR == 1 && /^\357\273\277/ { mark = " bom" }
        RT == "\n" { /\r$/ ? crlf++ : lf++ }
        { sub(/\r$/, "") }
        /[ \t]$/ { blanks = " blanks" }
        END {
            kind = lf && crlf ? "mixed" : lf ? "lf" : crlf ? "crlf" : "none"
            print kind mark blanks
        }' "$file")
    echo "$file $found"
    case $found in lf | none) continue ;; esac
    if [ $fix = yes ]; then
        mkdir -p "$out"
        gawk 'NR == 1 { sub(/^\357\273\277/, "") } { sub(/[ \t\r]+$/, ""); printf "%s%s", $0, RT }' "$file" \
            >"$out/$(basename -- "$file")"
    else
        code=1
    fi
done
exit $code
