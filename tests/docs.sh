#!/usr/bin/env bash
# Checks what the documents say against the repository: links lead to files, each promise has its test, and the files that
# ARCHITECTURE.md names exist. With the directory of a package's documents, checks only its links.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

faults=0
fault() { echo "docs: $*" >&2; faults=$((faults + 1)); }

for document in *.md docs/*.md; do
    while read -r link; do
        [ -e "$(dirname "$document")/$link" ] || fault "$document links to $link, which does not exist"
    done < <(grep -oE '\]\([^):#]+[)#]' "$document" | sed 's/^](//; s/[)#]$//')
done

if [ $# = 1 ]; then
    ((faults == 0)) && exit
    exit 1
fi

# The last cell of each row that begins a promise: one or more names of tests, or why there is none.
for document in docs/security.md docs/conformance.md; do
    cells=$(awk -F'|' '/^\|/ && NF == 5 && $2 !~ /^-+$/ && $4 !~ /^ test $/ { print $4 }' "$document")
    [ -n "$cells" ] || fault "$document promises nothing"
    while read -r cell; do
        grep -q '`[^`]*`' <<<"$cell" || [[ $cell = 'no: '* ]] || fault "$document has a promise without a test: $cell"
    done <<<"$cells"
    while read -r name; do
        [ -e "$name" ] || grep -rqwE --include='*.rs' "fn $name" common daemon images client proto tests ||
            fault "$document promises a test $name, which does not exist"
    done < <(grep -oE '`[^`]+`' <<<"$cells" | tr -d '`')
done

# By their path or its end.
sources=$(git ls-files --cached --others --exclude-standard)
while read -r name; do
    grep -qE "(^|/)$name\$" <<<"$sources" || fault "ARCHITECTURE.md names the file $name, which does not exist"
done < <(grep -oE '[a-z0-9_/-]+\.(rs|proto|sh|py)\b' ARCHITECTURE.md | sort -u)

# What `make files` lists.
while read -r path sentence; do
    [ -z "$path" ] || [[ $sentence = *. && ${#sentence} -le 120 ]] ||
        fault "$path does not begin with a sentence of at most 120 characters"
done < <(tests/files.sh)

((faults == 0)) || exit 1
echo 'docs: every link leads somewhere, every promise has its test, every source file its first sentence'
