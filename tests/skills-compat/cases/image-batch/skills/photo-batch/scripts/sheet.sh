#!/usr/bin/env bash
# Puts all pictures of a folder on one sheet: sheet.sh FROM TARGET.png
set -euo pipefail
magick montage "$1"/*.jpg -tile 2x -geometry 100x100+5+5 -background gray "$2"
