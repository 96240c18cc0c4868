#!/usr/bin/env bash
# Shows the shape of a JSON file. See ../SKILL.md.
set -euo pipefail

readonly usage='usage: json-shape.sh [--examples] FILE'
fail() { # code, message
    echo "json-shape: $2" >&2
    exit "$1"
}

examples=false
if [ "${1-}" = --examples ]; then
    examples=true
    shift
fi
[ "${1-}" != -- ] || shift
[ $# = 1 ] && [ -n "$1" ] || fail 2 "$usage"
[ -f "$1" ] || fail 3 "there is no file $1"

# Reduced as it is read: memory grows with the number of paths, not with the number of values.
readonly program='
def steps: map(if type == "number" then "[]" else "." + . end) | join("") | if . == "" then "." else . end;
reduce inputs as $value ({};
  reduce ($value | paths, []) as $path (.;
    ($value | getpath($path)) as $found
    | ($path | steps) as $name
    | .[$name].count += 1
    | .[$name].types[$found | type] = true
    | if .[$name] | has("example") then . else .[$name].example = ($found | tojson) end))
| to_entries | sort_by(.key)[]
| [.key, .value.count, (.value.types | keys | join("|"))]
  + (if $examples then [.value.example[:40]] else [] end)
| map(tostring) | join("\t")'

table=$(jq -n -r --argjson examples "$examples" "$program" "$1" 2>&1) || fail 4 "${table##*jq: }"
header=$'path\tcount\ttypes'
[ $examples = false ] || header+=$'\texample'
printf '%s\n%s\n' "$header" "$table" | awk -F '\t' '
    { for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } last[NR] = NF }
    END { for (r = 1; r <= NR; r++) {
        for (i = 1; i < last[r]; i++) printf "%-" (width[i] + 2) "s", cell[r, i]
        print cell[r, last[r]] } }'
