#!/bin/bash
# Cuts and joins videos.
set -euo pipefail

readonly ME=$(basename "$0")
declare -a parts=()
quality=23

usage() {
    cat <<EOF
Usage: $ME cut IN START END OUT
       $ME join IN... -o OUT

convert and mencoder are not needed any more.
EOF
}

die() { echo "$ME: $*" >&2; exit 1; }

duration() {
    ffprobe -v error -show_entries format=duration -of csv=p=0 "$1"
}

cut_clip() {
    local in=$1 start=$2 end=$3 out=$4
    [[ -f $in ]] || die "no such file: $in"
    ffmpeg -y -ss "$start" -to "$end" -i "$in" -c copy "$out" 2>/dev/null
}

join_clips() {
    local list out=""
    list=$(mktemp)
    trap 'rm -f "$list"' EXIT
    while (( $# )); do
        case $1 in
        -o|--output) out=$2; shift 2 ;;
        -q) quality=$2; shift 2 ;;
        *) parts+=("$1"); shift ;;
        esac
    done
    for part in "${parts[@]}"; do
        echo "file '$(realpath "$part")'" >>"$list"
    done
    total=0
    for part in "${parts[@]}"; do
        total=$(echo "$total + $(duration "$part")" | bc)
    done
    echo "joining ${#parts[@]} parts, $total s"
    if ! ffmpeg -y -f concat -safe 0 -i "$list" -crf "$quality" "$out"; then
        die "ffmpeg failed"
    fi
}

case ${1:-} in
cut) shift; cut_clip "$@" ;;
join) shift; join_clips "$@" ;;
-h|--help) usage ;;
*) usage >&2; exit 2 ;;
esac
