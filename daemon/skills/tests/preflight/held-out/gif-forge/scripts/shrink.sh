#!/usr/bin/env bash
# usage: shrink.sh IN OUT [WIDTH]
set -euo pipefail
in=$1 out=$2 width=${3:-320}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT

dur=$(ffprobe -v error -show_entries format=duration -of csv=p=0 "$in" | cut -d. -f1)
[ "${dur:-0}" -gt 12 ] && { echo "clip longer than 12s, trim it first" >&2; exit 2; }

for fps in 15 12 10 8; do
  nice -n 10 ffmpeg -loglevel error -y -i "$in" \
    -vf "fps=$fps,scale=$width:-1:flags=lanczos,palettegen" "$tmp/p.png"
  nice -n 10 ffmpeg -loglevel error -y -i "$in" -i "$tmp/p.png" \
    -lavfi "fps=$fps,scale=$width:-1:flags=lanczos[x];[x][1:v]paletteuse" "$tmp/o.gif"
  if command -v gifsicle >/dev/null; then
    gifsicle -O3 --lossy=60 "$tmp/o.gif" -o "$out"
  else
    cp "$tmp/o.gif" "$out"
  fi
  size=$(stat -c %s "$out")
  (( size < 2000000 )) && { echo "$out: $size bytes at $fps fps"; exit 0; }
done
echo "could not get below 2 MB" >&2
exit 1
