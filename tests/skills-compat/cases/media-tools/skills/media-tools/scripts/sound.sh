#!/usr/bin/env bash
# Writes the sound of a video as WAV: sound.sh VIDEO TARGET.wav
set -euo pipefail
ffmpeg -y -nostdin -v error -i "$1" -vn -ac 1 -ar 16000 -c:a pcm_s16le "$2"
