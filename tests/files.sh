#!/usr/bin/env bash
# Lists the source files of the programs, folder by folder, each with the first sentence of its comment. Run by `make
# files`.
# Usage: tests/files.sh [FOLDER]    a path from the top of the repository
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

# The tab sorts the files of a folder before its subfolders.
mapfile -t paths < <(git ls-files --cached --others --exclude-standard -- "${1:-.}" |
    grep -E '(^|/)src/.*\.(rs|py)$|\.proto$' | grep -vE '^tests/|/tests(/|\.rs$)' | sed 's|[^/]*$|\t&|' | sort | tr -d '\t')
((${#paths[@]})) || { echo "files: no source file in ${1:-.}" >&2; exit 1; }
exec awk '
    function print_folder(  row) {
        for (row = 1; row <= rows; row++) printf "%-" width "s  %s\n", paths[row], sentences[row]
        rows = width = 0
    }
    FNR == 1 {
        path = FILENAME
        sub(/[^\/]*$/, "", path)
        if (rows && path != folder) { print_folder(); print "" }
        folder = path
        text = ""
    }
    { sub(/^(\/\/!?|"""|#) ?/, ""); text = text $0 " " }
    match(text, /\. /) || $0 == "" {
        paths[++rows] = FILENAME
        sentences[rows] = substr(text, 1, RSTART ? RSTART : length(text) - 1)
        if (length(FILENAME) > width) width = length(FILENAME)
        nextfile
    }
    END { print_folder() }' "${paths[@]}"
