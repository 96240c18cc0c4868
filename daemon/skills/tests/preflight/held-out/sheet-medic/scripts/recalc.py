#!/usr/bin/env python3
"""Recalculate all formulas with LibreOffice and list error cells."""
import json
import os
import platform
import shutil
import subprocess
import sys

from openpyxl import load_workbook

ERRORS = ("#VALUE!", "#DIV/0!", "#REF!", "#NAME?", "#NULL!", "#NUM!", "#N/A")
MACRO = "vnd.sun.star.script:Standard.Module1.Recalc?language=Basic&location=application"


def recalc(path, limit=30):
    cmd = ["soffice", "--headless", "--norestore", MACRO, os.path.abspath(path)]
    if platform.system() == "Linux":
        cmd = ["timeout", str(limit)] + cmd
    elif platform.system() == "Darwin" and shutil.which("gtimeout"):
        cmd = ["gtimeout", str(limit)] + cmd
    proc = subprocess.run(cmd, capture_output=True, text=True)
    if proc.returncode not in (0, 124):
        return {"error": proc.stderr}
    wb = load_workbook(path, data_only=True)
    bad = {}
    for ws in wb:
        for row in ws.iter_rows():
            for c in row:
                if isinstance(c.value, str) and c.value in ERRORS:
                    bad.setdefault(c.value, []).append(f"{ws.title}!{c.coordinate}")
    return {"status": "errors_found" if bad else "success", "errors": bad}


if __name__ == "__main__":
    print(json.dumps(recalc(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30), indent=2))
