#!/bin/bash
# Gathers everything the reviewer needs into one JSON document.
set -Eeuo pipefail

PR=${1:?usage: collect.sh NUMBER}
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

log() { printf '%s\n' "$*" >&2; }
try() { local n; for n in 1 2 3; do "$@" && return; sleep "$n"; done; return 1; }

log "fetching #$PR"
try gh pr view "$PR" --json title,body,author,files,baseRefName > "$work/meta.json"
try gh pr diff "$PR" > "$work/diff"

gh api graphql -F pr="$PR" -f query='
  query($pr: Int!) {
    repository(owner: "{owner}", name: "{repo}") {
      pullRequest(number: $pr) { reviewThreads(first: 50) { nodes { isResolved } } }
    }
  }' > "$work/threads.json" || echo '{}' > "$work/threads.json"

base=$(jq -r .baseRefName "$work/meta.json")

# churn per touched file
jq -r '.files[].path' "$work/meta.json" | while IFS= read -r f; do
  n=$(git log --oneline --since=90.days "origin/$base" -- "$f" | wc -l)
  printf '%s\t%s\n' "$n" "$f"
done | sort -rn > "$work/churn.tsv"

# shell files get linted right away
jq -r '.files[].path | select(endswith(".sh"))' "$work/meta.json" \
  | xargs -r -P4 -I{} shellcheck -f gcc {} > "$work/sc.txt" || true

if type rg &>/dev/null; then
  todo=$(rg -c 'TODO|FIXME' "$work/diff" || echo 0)
else
  todo=$(grep -cE 'TODO|FIXME' "$work/diff" || true)
fi

jq -n --slurpfile m "$work/meta.json" --rawfile d "$work/diff" --rawfile c "$work/churn.tsv" \
  --rawfile sc "$work/sc.txt" --arg todo "$todo" \
  '{meta: $m[0], diff: $d, churn: $c, shellcheck: $sc, todo: $todo}'
