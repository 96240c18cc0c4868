"""Checks the counts."""

import sys
from pathlib import Path

wanted = {
    "status.txt": ["200 110", "404 7", "500 3"],
    "slowest.txt": ["252.0 ms /search"],
    "paths.txt": ["/ 30", "/img/logo.png 30", "/login 30", "/search 30"],
}
for name, lines in wanted.items():
    found = Path(sys.argv[1], "out", name).read_text().splitlines()
    if sorted(found) != sorted(lines):
        sys.exit(f"out/{name} has other lines: {found}")
    print(f"ok: out/{name} has the right counts")
