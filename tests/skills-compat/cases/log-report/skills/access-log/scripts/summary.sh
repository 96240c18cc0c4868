#!/usr/bin/env bash
# Prints a summary of a log.
set -euo pipefail
log=$1
if [ -s "$log" ]; then
    echo "lines: $(wc -l < "$log")"
    echo "first: $(head -n 1 "$log" | cut -d" " -f1)"
    echo "last: $(tail -n 1 "$log" | cut -d" " -f1)"
fi
