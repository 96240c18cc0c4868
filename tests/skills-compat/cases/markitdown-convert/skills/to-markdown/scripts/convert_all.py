#!/usr/bin/env python3
"""Converts all files of a folder to Markdown: convert_all.py FROM TO."""

import sys
from pathlib import Path

from markitdown import MarkItDown

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
converter = MarkItDown(enable_plugins=False)
index = []
for path in sorted(source.iterdir()):
    text = converter.convert(path).text_content.strip()
    (target / f"{path.name}.md").write_text(text + "\n")
    index.append(f"- [{path.name}]({path.name}.md), {len(text.split())} words")
(target / "index.md").write_text("\n".join(["# Files", "", *index, ""]))
print(f"{len(index)} files")
