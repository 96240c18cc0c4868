#!/bin/sh
ns=$1 app=$2
if command -v stern >/dev/null 2>&1; then
  exec stern -n "$ns" "$app" --since 15m --no-follow
fi
for p in $(kubectl -n "$ns" get pods -l "app=$app" -o name); do
  echo "== $p"
  kubectl -n "$ns" logs "$p" --all-containers --tail=200 --previous 2>/dev/null ||
    kubectl -n "$ns" logs "$p" --all-containers --tail=200
done
