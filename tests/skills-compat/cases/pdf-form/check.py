"""Checks the values of the filled form, and that they can be seen."""

import subprocess
import sys
from pathlib import Path

from pypdf import PdfReader


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


path = Path(sys.argv[1], "out/application.pdf")
fields = {name: str(field.value or "") for name, field in PdfReader(path).get_fields().items()}
wanted = {"name": "Ada Lovelace", "street": "", "city": "London", "member": "/Yes", "size": "large"}
expect("values of the fields", fields, wanted)
text = subprocess.run(["pdftotext", "-layout", path, "-"], check=True, capture_output=True, text=True).stdout
for part in ("Ada Lovelace", "London"):
    expect(f"{part!r} on the page", text.count(part), 1)
