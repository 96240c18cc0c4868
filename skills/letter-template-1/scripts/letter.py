#!/usr/bin/env python3
"""Fills the template of a letter. See ../SKILL.md."""

import argparse
import os
import string
import sys
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1] / "assets" / "letter.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fills the template of a letter; the body is read from stdin.")
    parser.add_argument("--to", required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--from", dest="sender", default="")
    parser.add_argument("--date", default="")
    args = parser.parse_args()
    body = sys.stdin.read().strip()
    if not body:
        parser.error("the body is empty: give it on standard input")
    values = {"to": args.to, "from": args.sender, "date": args.date, "subject": args.subject, "body": body}
    letter = string.Template(TEMPLATE.read_text()).substitute(values)
    out = Path(os.environ.get("OUTPUT_DIR", "out"))
    out.mkdir(exist_ok=True)
    (out / "letter.txt").write_text(letter)
    print(f"wrote {out / 'letter.txt'}")


if __name__ == "__main__":
    main()
