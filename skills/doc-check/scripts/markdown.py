"""What check.py needs to know of a Markdown file: its headings and its links, outside of code."""

import re
from typing import NamedTuple

LINK = re.compile(r"!?\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"^\s{0,3}(```+|~~~+)")
CODE = re.compile(r"(`+).+?\1")


class Heading(NamedTuple):
    line: int
    level: int
    text: str

    def anchor(self) -> str:
        """As the usual renderers make it."""
        kept = re.sub(r"[^\w\- ]", "", self.text.lower())
        return kept.replace(" ", "-")


class Link(NamedTuple):
    line: int
    target: str


def parse(text: str) -> tuple[list[Heading], list[Link]]:
    """All headings and links, in order."""
    headings: list[Heading] = []
    links: list[Link] = []
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        marker = FENCE.match(line)
        if fence:
            if marker and marker[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if marker:
            fence = marker[1]
            continue
        if heading := HEADING.match(line):
            headings.append(Heading(number, len(heading[1]), heading[2]))
        links.extend(Link(number, found[1]) for found in LINK.finditer(CODE.sub("", line)))
    return headings, links
