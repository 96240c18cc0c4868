#!/usr/bin/env python3
"""Tells what is in an image file's header. See ../SKILL.md."""

import argparse
import json
import struct
import sys
from pathlib import Path

PRESETS = json.loads(Path(__file__).with_name("presets.json").read_text())
# Start of frame, baseline to arithmetic; C4, C8 and CC are something else.
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class NotUnderstood(Exception):
    """It is none of the formats, or its header is cut."""


def png(data: bytes) -> dict:
    width, height, bits = struct.unpack(">IIB", data[16:25])
    return {"format": "png", "width": width, "height": height, "bits": bits, "complete": data[-8:-4] == b"IEND"}


def gif(data: bytes) -> dict:
    width, height, flags = struct.unpack("<HHB", data[6:11])
    return {"format": "gif", "width": width, "height": height, "bits": (flags & 7) + 1, "complete": data[-1:] == b";"}


def jpeg(data: bytes) -> dict:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            break
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if marker in FRAMES:
            bits, height, width = struct.unpack(">BHH", data[at + 4 : at + 9])
            complete = data[-2:] == b"\xff\xd9"
            return {"format": "jpeg", "width": width, "height": height, "bits": bits, "complete": complete}
        at += 2 + length
    raise NotUnderstood("a JPEG without a frame header")


def info(data: bytes) -> dict:
    readers = [(b"\x89PNG\r\n\x1a\n", png), (b"GIF87a", gif), (b"GIF89a", gif), (b"\xff\xd8\xff", jpeg)]
    for magic, reader in readers:
        if data.startswith(magic):
            try:
                return reader(data)
            except struct.error:
                raise NotUnderstood("its header is cut") from None
    raise NotUnderstood("no PNG, GIF or JPEG")


def main() -> int:
    parser = argparse.ArgumentParser(description="Tells what is in image files' headers.")
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--fits", choices=sorted(PRESETS))
    args = parser.parse_args()
    code = 0
    for path in args.file:
        shown = {"file": str(path)}
        try:
            shown |= info(path.read_bytes())
            if args.fits:
                width, height = PRESETS[args.fits]
                shown["fits"] = shown["width"] >= width and shown["height"] >= height
        except (OSError, NotUnderstood) as error:
            shown["error"] = str(error)
            code = 4
        print(json.dumps(shown))
    return code


if __name__ == "__main__":
    sys.exit(main())
