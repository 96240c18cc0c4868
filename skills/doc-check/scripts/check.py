"""Checks Markdown files. See ../SKILL.md. Run as `python -m scripts.check`."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from .markdown import parse


class Finding(NamedTuple):
    file: str
    line: int
    code: str
    message: str


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        print(f"check: {path}: {error}", file=sys.stderr)
        sys.exit(2)


def check(path: Path) -> Iterator[Finding]:
    """All that is wrong with one file."""
    headings, links = parse(read(path))
    seen: dict[str, int] = {}
    level = 0
    for heading in headings:
        if level and heading.level > level + 1:
            yield Finding(str(path), heading.line, "level", f"level {heading.level} follows level {level}")
        level = heading.level
        if heading.text in seen:
            yield Finding(str(path), heading.line, "double", f"{heading.text!r} is in line {seen[heading.text]} too")
        seen.setdefault(heading.text, heading.line)
    for link in links:
        file, _, anchor = unquote(link.target).partition("#")
        if ":" in file or file.startswith("/"):
            continue
        target = path.parent / file if file else path
        if not target.exists():
            yield Finding(str(path), link.line, "link", f"{file} does not exist")
        elif anchor and target.suffix == ".md":
            anchors = {heading.anchor() for heading in parse(read(target))[0]}
            if anchor.lower() not in anchors:
                yield Finding(str(path), link.line, "anchor", f"{file or path.name} has no heading #{anchor}")


def files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.md"))
        else:
            yield path


def main() -> int:
    parser = argparse.ArgumentParser(prog="check", description="Checks Markdown files.")
    parser.add_argument("path", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    args = parser.parse_args()
    findings = sorted({finding for path in files(args.path) for finding in check(path)})
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.file}:{finding.line}: {finding.code} {finding.message}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
