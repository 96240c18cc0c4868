#!/usr/bin/env bash
set -euo pipefail
symbol=${1:?symbol}
rg -l --type-add 'web:*.{html,css,js}' -e "\b${symbol}\(" . \
  | sort -u \
  | while IFS= read -r file; do
      printf '%s\t%s\n' "$(rg -c -e "$symbol" "$file")" "$file"
    done | sort -rn
