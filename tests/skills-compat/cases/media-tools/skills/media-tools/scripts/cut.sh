#!/usr/bin/env bash
# Cuts a part of a video: cut.sh VIDEO FROM TO TARGET. Prints progress.
set -euo pipefail
ffmpeg -y -nostdin -v error -ss "$2" -to "$3" -i "$1" -c:v libx264 -preset ultrafast -c:a aac -progress pipe:1 "$4" |
    grep --line-buffered -E '^(frame|progress)='
