#!/usr/bin/env python3
"""Fills a form: fill_form.py FORM.pdf VALUES.json FILLED.pdf."""

import json
import sys
from pathlib import Path

from list_fields import describe_fields
from pypdf import PdfReader, PdfWriter


def find_faults(fields, values):
    for name, value in values.items():
        if name not in fields:
            yield f"unknown field {name!r}"
        elif "states" in fields[name] and value not in fields[name]["states"]:
            yield f"{name!r} can't be {value!r}: use one of {fields[name]['states']}"


form, values, target = sys.argv[1:]
values = json.loads(Path(values).read_text())
faults = list(find_faults(describe_fields(form), values))
if faults:
    print("\n".join(faults))
    sys.exit(2)
writer = PdfWriter()
writer.append(PdfReader(form))
for page in writer.pages:
    writer.update_page_form_field_values(page, values, auto_regenerate=False)
with open(target, "wb") as file:
    writer.write(file)
print(f"filled {len(values)} fields")
