from pathlib import Path

LIMIT = 64 * 1024


def check_size(p: Path, limit: int = LIMIT) -> bool:
    n = p.stat().st_size
    print(f"{p}: {n / 1024:.1f} KB", "ok" if n <= limit else "TOO BIG")
    return n <= limit
