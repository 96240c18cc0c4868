log_info() { printf '\033[32m%s\033[0m\n' "$*"; }
log_error() { printf '\033[31m%s\033[0m\n' "$*" >&2; }
