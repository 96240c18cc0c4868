#!/usr/bin/env bash
set -e
cd "$1"
mkdir -p thumbs
for photo in *.jpg *.png; do
    [ -e "$photo" ] || continue
    size=$(identify -format '%wx%h' "$photo")
    convert "$photo" -thumbnail "${2:-320}x" "thumbs/$photo" && echo "$photo $size"
done
find thumbs -name '*.jpg' -size +200k -exec jpegoptim --max=80 {} +
