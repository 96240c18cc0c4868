#!/usr/bin/env python3
"""Pack a folder into a Word file."""
import argparse
import subprocess
import sys
import zipfile
from pathlib import Path


def check(path: Path) -> bool:
    """Return True if LibreOffice opens the file."""
    done = subprocess.run(
        ["soffice", "--headless", "--convert-to", "html", "--outdir", "/tmp", str(path)],
        capture_output=True,
        timeout=60,
    )
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("target")
    args = parser.parse_args()
    with zipfile.ZipFile(args.target, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in sorted(Path(args.folder).rglob("*")):
            archive.write(part, part.relative_to(args.folder))
    sys.exit(0 if check(Path(args.target)) else 1)


main()
