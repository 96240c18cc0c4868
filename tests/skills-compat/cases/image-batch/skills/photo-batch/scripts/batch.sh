#!/usr/bin/env bash
# Shrinks all pictures of a folder: batch.sh FROM TO WIDTH
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
owner=$(<"$here/assets/owner.txt")
mkdir -p "$2"
find "$1" -type f \( -iname '*.png' -o -iname '*.bmp' -o -iname '*.webp' \) -print0 | sort -z |
    while IFS= read -r -d '' picture; do
        name=$(basename "${picture%.*}")
        magick "$picture" -resize "$3x>" -gravity SouthEast -pointsize 10 -fill white -annotate +4+4 "$owner" \
            -strip -quality 80 "$2/$name.jpg"
        echo "$name.jpg"
    done
