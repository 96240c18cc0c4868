#!/usr/bin/env python3
import argparse
import subprocess
import sys
from pathlib import Path

import yaml
from PIL import Image


class BookBuilder:
    PANDOC = "pandoc"

    def __init__(self, folder: Path):
        self.folder = folder

    def check_cover(self, cover: Path) -> None:
        with Image.open(cover) as image:
            if image.size[0] < 1000:
                print("warning: small cover", file=sys.stderr)

    def build(self, out: Path, cover: Path | None) -> int:
        chapters = sorted(self.folder.glob("*.md"))
        args = [self.PANDOC, "-o", str(out), *map(str, chapters)]
        if cover:
            args += ["--epub-cover-image", str(cover)]
        return subprocess.call(args)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cover", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("book.epub"))
    options = parser.parse_args()
    meta = yaml.safe_load((options.folder / "meta.yaml").read_text())
    print(meta["title"])
    builder = BookBuilder(options.folder)
    if options.cover:
        builder.check_cover(options.cover)
    return builder.build(options.out, options.cover)


if __name__ == "__main__":
    raise SystemExit(main())
