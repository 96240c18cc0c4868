#!/usr/bin/env python3
"""Joins, splits and rotates PDF files."""

import argparse
from pathlib import Path

from pypdf import PdfReader, PdfWriter


def join(args):
    writer = PdfWriter()
    for source in args.sources:
        path, _, pages = source.partition(":")
        reader = PdfReader(path)
        first, _, last = (pages or f"1-{len(reader.pages)}").partition("-")
        for number in range(int(first), int(last or first) + 1):
            writer.add_page(reader.pages[number - 1])
    writer.write(args.target)
    print(f"{len(writer.pages)} pages")


def split(args):
    args.folder.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(PdfReader(args.source).pages, 1):
        writer = PdfWriter()
        writer.add_page(page)
        writer.write(args.folder / f"part-{number}.pdf")
    print(f"{number} files")


def rotate(args):
    writer = PdfWriter()
    for page in PdfReader(args.source).pages:
        writer.add_page(page).rotate(args.degrees)
    writer.write(args.target)


parser = argparse.ArgumentParser(description=__doc__)
commands = parser.add_subparsers(required=True)
command = commands.add_parser("join")
command.add_argument("target")
command.add_argument("sources", nargs="+")
command.set_defaults(run=join)
command = commands.add_parser("split")
command.add_argument("source")
command.add_argument("folder", type=Path)
command.set_defaults(run=split)
command = commands.add_parser("rotate")
command.add_argument("source")
command.add_argument("degrees", type=int)
command.add_argument("target")
command.set_defaults(run=rotate)
args = parser.parse_args()
args.run(args)
