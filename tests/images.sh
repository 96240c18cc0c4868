#!/usr/bin/env bash
# Proves what the image promises, in a container configured as tightly as a workspace's.
set -euo pipefail
image=${1:-skilld/base:latest}

fail() { echo "image: $*" >&2; exit 1; }

[ "$(docker image inspect -f '{{len .Config.Volumes}} {{.Config.User}}' "$image")" = '0 65534:65534' ] ||
    fail "declares a VOLUME or runs as root"

# As root, since only root can look into every folder.
left=$(docker run --rm --network none --user 0 --label io.skilld.test=image "$image" find / -xdev -type f -perm /6000)
[ -z "$left" ] || fail "setuid or setgid programs left: $left"

docker run --rm --network none --read-only --user 200000:200000 --cap-drop ALL --security-opt no-new-privileges \
    --tmpfs /tmp:exec --label io.skilld.test=image "$image" bash -euc '
    for tool in awk bash cat curl file find git grep jq node python python3 sed sqlite3 tar unzip zip; do
        command -v $tool >/dev/null || { echo "$tool is missing" >&2; exit 1; }
    done
    [ "$LANG" = C.UTF-8 ]
    [ -d /workspace ] && [ -d /run/skilld ] && [ -s /etc/ssl/certs/ca-certificates.crt ]
    python -c "import requests, sqlite3, ssl, yaml; assert yaml.safe_load(\"a: 1\") == {\"a\": 1}"
    python -m venv /tmp/venv && /tmp/venv/bin/pip --version >/dev/null
    [ "$(node -p "1 + 1")" = 2 ] && [ "$(jq -n 1+1)" = 2 ] && [ "$(sqlite3 :memory: "select 1+1")" = 2 ]
    git -c init.defaultBranch=main init -q /tmp/repository
    [ "$(printf "%s" "é" | wc -m)" = 1 ]
' || fail "something that skills rely on is missing or does not work"
echo "image: $image holds what it promises"
