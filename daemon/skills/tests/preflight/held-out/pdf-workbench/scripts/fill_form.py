#!/usr/bin/env python3
"""List or fill AcroForm fields."""
from __future__ import annotations

import json
import sys
from pathlib import Path

from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject

from form_schema import Field, load_fields


def fields(src: str) -> None:
    out = []
    for name, f in (PdfReader(src).get_fields() or {}).items():
        out.append({"name": name, "type": str(f.get("/FT")), "value": ""})
    json.dump(out, sys.stdout, indent=2)


def fill(src: str, spec: str, dst: str) -> None:
    values = {f.name: f.value for f in load_fields(Path(spec))}
    writer = PdfWriter(clone_from=src)
    for page in writer.pages:
        writer.update_page_form_field_values(page, values)
    writer._root_object[NameObject("/NeedAppearances")] = NameObject("true")
    with open(dst, "wb") as fh:
        writer.write(fh)


if __name__ == "__main__":
    cmd, *rest = sys.argv[1:]
    {"fields": fields, "fill": fill}[cmd](*rest)
