#!/usr/bin/env python3
"""Replaces text in an unpacked document as tracked changes."""

import argparse
import copy
from pathlib import Path

from lxml import etree

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def make_run(run, text, tag="t"):
    """Returns a run with the style of another one and its own text."""
    new = etree.Element(W + "r")
    if run.find(W + "rPr") is not None:
        new.append(copy.deepcopy(run.find(W + "rPr")))
    etree.SubElement(new, W + tag, {SPACE: "preserve"}).text = text
    return new


def make_change(kind, number, author, run):
    change = etree.Element(W + kind, {W + "id": str(number), W + "author": author, W + "date": "2026-03-04T00:00:00Z"})
    change.append(run)
    return change


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--find", required=True)
    parser.add_argument("--replace", required=True)
    parser.add_argument("--author", required=True)
    args = parser.parse_args()
    path = args.folder / "word/document.xml"
    tree = etree.parse(path)
    changes = 0
    for run in list(tree.iter(W + "r")):
        before, found, after = "".join(run.itertext(W + "t")).partition(args.find)
        if not found:
            continue
        deleted = make_change("del", 900 + changes, args.author, make_run(run, found, "delText"))
        inserted = make_change("ins", 901 + changes, args.author, make_run(run, args.replace))
        for part in (make_run(run, before), deleted, inserted, make_run(run, after)):
            run.addprevious(part)
        run.getparent().remove(run)
        changes += 2
    tree.write(path, xml_declaration=True, encoding="UTF-8", standalone=True)
    print(f"{changes // 2} replacements")


if __name__ == "__main__":
    main()
