#!/usr/bin/env python3
"""Prints the fields of a form as JSON: list_fields.py FORM.pdf."""

import json
import sys

from pypdf import PdfReader

KINDS = {"/Tx": "text", "/Btn": "button", "/Ch": "choice"}


def describe_fields(path):
    fields = {}
    for name, field in (PdfReader(path).get_fields() or {}).items():
        entry = {"kind": KINDS.get(field.field_type, "other"), "value": str(field.value or "")}
        states = field.get("/_States_")
        if states:
            entry["states"] = [str(state) for state in states]
        fields[name] = entry
    return fields


if __name__ == "__main__":
    print(json.dumps(describe_fields(sys.argv[1]), indent=1))
