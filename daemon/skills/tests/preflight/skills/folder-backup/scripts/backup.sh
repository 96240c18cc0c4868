#!/usr/bin/env bash
set -Eeuo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/log.sh"

keep=5
while getopts ":n:h" opt; do
    case "$opt" in
        n) keep="$OPTARG" ;;
        h) sed -n '2,4p' "$0"; exit 0 ;;
        \?) log_error "bad option"; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
src="${1:-}" dst="${2:-}"
stamp=$(date +%Y%m%d-%H%M%S)
PROGRESS=cat
command -v pv >/dev/null 2>&1 && PROGRESS=pv

function rotate {
    local -i count=0
    ls -1dt "$dst"/backup-* 2>/dev/null | while read -r old; do
        count+=1
        if [[ $count -gt $keep ]]; then rm -rf -- "$old"; fi
    done
}

main() {
    log_info "from $src"
    mkdir -p "$dst/backup-$stamp"
    rsync -a --delete --exclude='.git' "$src/" "$dst/backup-$stamp/"
    tar -cf - -C "$dst" "backup-$stamp" | "$PROGRESS" | gzip -9 > "$dst/backup-$stamp.tar.gz"
    rotate
    cat > "$dst/README" <<-'TEXT'
	restore with:
	  borg extract this
	TEXT
    python3 - "$dst" <<'PY'
import sys, os
print(len(os.listdir(sys.argv[1])), "backups")
PY
}

main "$@"
