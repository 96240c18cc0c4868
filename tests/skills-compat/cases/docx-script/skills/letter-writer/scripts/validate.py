#!/usr/bin/env python3
"""Checks the package of a Word document: XML, content types and relationships."""

import posixpath
import sys
import zipfile

from lxml import etree

TYPES = "{http://schemas.openxmlformats.org/package/2006/content-types}"
RELATIONSHIP = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"


def faults(package):
    names = set(package.namelist())
    trees = {name: etree.fromstring(package.read(name)) for name in names if name.endswith((".xml", ".rels"))}
    types = trees["[Content_Types].xml"]
    extensions = {item.get("Extension") for item in types.iter(f"{TYPES}Default")}
    parts = {item.get("PartName")[1:] for item in types.iter(f"{TYPES}Override")}
    for name in sorted(names - {"[Content_Types].xml"}):
        if name not in parts and name.rpartition(".")[2] not in extensions:
            yield f"{name} has no content type"
    for name in (name for name in sorted(names) if name.endswith(".rels")):
        folder = posixpath.dirname(posixpath.dirname(name))
        for item in trees[name].iter(RELATIONSHIP):
            target = posixpath.normpath(posixpath.join(folder, item.get("Target")))
            if item.get("TargetMode") != "External" and target.lstrip("/") not in names:
                yield f"{name} leads to {target}, which is missing"


try:
    with zipfile.ZipFile(sys.argv[1]) as package:
        found = list(faults(package))
        count = len(package.namelist())
except (zipfile.BadZipFile, etree.XMLSyntaxError, KeyError) as error:
    found = [str(error)]
for fault in found:
    print(f"invalid: {fault}")
if found:
    sys.exit(1)
print(f"valid: {count} parts")
