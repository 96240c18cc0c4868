#!/usr/bin/env bash
# Checks what the documents say against the repository: links lead to files, and each promise has its test.
set -euo pipefail
cd "$(dirname "$0")/.."

faults=0
fault() { echo "docs: $*" >&2; faults=$((faults + 1)); }

for document in *.md docs/*.md; do
    while read -r link; do
        [ -e "$(dirname "$document")/$link" ] || fault "$document links to $link, which does not exist"
    done < <(grep -oE '\]\([^):#]+[)#]' "$document" | sed 's/^](//; s/[)#]$//')
done

# The last cell of each row that begins a promise: one or more names of tests.
while read -r name; do
    [ -e "$name" ] || grep -rqwE --include='*.rs' "fn $name" daemon images client proto tests ||
        fault "docs/security.md promises a test $name, which does not exist"
done < <(awk -F'|' '/^\|/ && NF == 5 { print $4 }' docs/security.md | grep -oE '`[^`]+`' | tr -d '`')

((faults == 0)) || exit 1
echo 'docs: every link leads somewhere, every promise has its test'
