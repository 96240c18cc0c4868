#!/usr/bin/env bash
# Checks what the documents say against the repository: links lead to files and headings, pages that code names and files
# that ARCHITECTURE.md names exist, and each promise has its test. With the directory of a package's documents, checks only
# the files of its links.
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

# Pages that comments and messages name. A quoted path is a file that a test reads or makes.
mentions=$(grep -roE '[ (`]docs/[a-z-]{3,}\.md(#[a-z0-9-]+)?' Makefile CONTRIBUTING.md client common daemon deploy images proto \
    tests --include='*.rs' --include='*.sh' --include='*.toml' --include='*.yaml' --include='*.yml' --include='*.hcl' \
    --include='*.proto' --include=Makefile --include='*.md' --exclude-dir=skills-compat --exclude-dir=target)
findings=$(
    PYTHONPATH=skills/doc-check python3 -B - 3<<<"$mentions" <<'END'
from pathlib import Path
from scripts.check import check
from scripts.markdown import parse

documents = [*Path().glob("*.md"), *Path("docs").glob("*.md")]
for finding in sorted(finding for document in documents for finding in check(document)):
    if finding.code == "anchor":
        print(f"{finding.file}:{finding.line}: {finding.message}")
for mention in open(3, encoding="utf-8"):
    file, _, target = mention.rstrip("\n").partition(":")
    page, _, anchor = target.strip(" (`").partition("#")
    if not Path(page).exists():
        print(f"{file} names {page}, which does not exist")
    elif anchor and anchor not in {heading.anchor() for heading in parse(Path(page).read_text(encoding="utf-8"))[0]}:
        print(f"{file} names #{anchor} of {page}, which has no such heading")
END
)
while read -r finding; do
    [ -z "$finding" ] || fault "$finding"
done <<<"$findings"

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
