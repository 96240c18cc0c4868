#!/usr/bin/env bash
set -euo pipefail
cd "${1:?dir}"
TF="${TF_BIN:-terraform}"

"$TF" init -input=false -upgrade=false >/dev/null
"$TF" validate -no-color

( tflint --init >/dev/null && tflint --format compact ) || echo "tflint complained, go on" >&2

set +e
"$TF" plan -input=false -lock=false -detailed-exitcode -out=plan.bin
code=$?
set -e
case $code in
  0) echo "no changes"; exit 0 ;;
  2) ;;
  *) exit "$code" ;;
esac

"$TF" show -json plan.bin > plan.json
jq -r '.resource_changes[]
  | select(.change.actions | index("delete"))
  | "DESTROYS \(.address)"' plan.json | tee destroys.txt

if hash infracost 2>/dev/null; then
  infracost breakdown --path plan.json --format table
fi

echo "Now a human may run: $TF apply plan.bin"
echo "or: atlantis apply -d $1"
