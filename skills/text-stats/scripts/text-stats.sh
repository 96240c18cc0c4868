#!/usr/bin/env bash
# Summarises one text file. See ../SKILL.md.
set -euo pipefail
export LC_ALL=C.UTF-8

readonly usage='usage: text-stats.sh [--top N] [--min-length N] [--json] FILE'

fail() { # code, message
    echo "text-stats: $2" >&2
    exit "$1"
}

number() { # option, value, maximum
    [[ $2 =~ ^[0-9]{1,6}$ ]] && ((10#$2 <= $3)) || fail 2 "$1 takes a number from 0 to $3, not '$2'"
    echo $((10#$2))
}

top=10 min_length=3 json='' path=''
while (($#)); do
    case $1 in
    --top) top=$(number --top "${2-}" 1000) && shift ;;
    --min-length) min_length=$(number --min-length "${2-}" 1000) && shift ;;
    --json) json=yes ;;
    -h | --help) echo "$usage" && exit 0 ;;
    --) shift && break ;;
    -?*) fail 2 "unknown option $1; $usage" ;;
    *) [ -z "$path" ] || fail 2 "one file at a time; $usage" && path=$1 ;;
    esac
    shift
done
[ -n "$path" ] || path=${1-}
[ -n "$path" ] || fail 2 "no file given; $usage"
[ -e "$path" ] || fail 3 "there is no file $path"
[ -f "$path" ] || fail 3 "$path is not a file"
[ -r "$path" ] || fail 3 "$path can't be read"

bytes=$(stat -L -c %s -- "$path")
encoding=$(file -L -b --mime-encoding -- "$path")
case $encoding in
binary) [ "$bytes" = 0 ] || fail 4 "$path is not text" ;;
utf-16* | utf-32*) fail 4 "$path is in $encoding; convert it to UTF-8 first" ;;
esac

# One pass. First line: the counts; then one line "count word" for each different word that is long enough.
counts=$(gawk -v min_length="$min_length" '
    {
        characters += length($0) + 1
        words += NF
        if (NF == 0) blank++
        if (length($0) > longest) { longest = length($0); longest_at = NR }
        found = patsplit(tolower($0), list, /[[:alnum:]]+(['\''’-][[:alnum:]]+)*/)
        for (i = 1; i <= found; i++) if (length(list[i]) >= min_length) seen[list[i]]++
    }
    # RT is empty when the last line has no newline.
    ENDFILE { if (NR && RT == "") characters-- }
    END {
        print NR + 0, blank + 0, words + 0, characters + 0, longest + 0, longest_at + 0
        for (word in seen) print seen[word], word
    }' "$path" 2>/dev/null)
read -r lines blank words characters longest longest_at <<<"${counts%%$'\n'*}"
frequent=$(tail -n +2 <<<"$counts" | sort -k1,1nr -k2 | head -n "$top" || true)

if [ -n "$json" ]; then
    out=${OUTPUT_DIR:-out}
    mkdir -p "$out"
    jq -Rn --arg file "$path" --argjson bytes "$bytes" --argjson lines "$lines" --argjson blank "$blank" \
        --argjson words "$words" --argjson characters "$characters" --argjson longest "$longest" --argjson at "$longest_at" '
        { file: $file, bytes: $bytes, lines: $lines, blank_lines: $blank, words: $words, characters: $characters,
          longest_line: { length: $longest, line: $at },
          top_words: [inputs | select(. != "") | capture("^(?<count>[0-9]+) (?<word>.*)$") | { word, count: (.count | tonumber) }] }
    ' <<<"$frequent" >"$out/summary.json"
fi

printf '%-13s %s\n' file "$path" bytes "$bytes" lines "$lines ($blank blank)" words "$words" characters "$characters" \
    'longest line' "$longest characters (line $longest_at)"
echo 'top words'
[ -z "$frequent" ] || while read -r count word; do printf '  %9d  %s\n' "$count" "$word"; done <<<"$frequent"
