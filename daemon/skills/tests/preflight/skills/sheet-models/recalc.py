#!/usr/bin/env python3
"""Recalculate all formulas of a workbook with LibreOffice."""
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from openpyxl import load_workbook


def macro_folder():
    if platform.system() == "Darwin":
        return Path("~/Library/Application Support/LibreOffice/4/user/basic").expanduser()
    return Path("~/.config/libreoffice/4/user/basic").expanduser()


def recalc(filename, timeout=30):
    macro_folder().mkdir(parents=True, exist_ok=True)
    cmd = [
        "soffice",
        "--headless",
        "--norestore",
        "vnd.sun.star.script:Standard.Module1.Recalc?language=Basic&location=application",
        os.path.abspath(filename),
    ]
    # On Linux a hanging office is killed.
    if platform.system() != "Windows":
        timeout_cmd = "timeout" if platform.system() == "Linux" else None
        if platform.system() == "Darwin":
            try:
                subprocess.run(["gtimeout", "--version"], capture_output=True, check=False)
                timeout_cmd = "gtimeout"
            except FileNotFoundError:
                pass
        if timeout_cmd:
            cmd = [timeout_cmd, str(timeout)] + cmd
    done = subprocess.run(cmd, capture_output=True, text=True)
    errors = 0
    for sheet in load_workbook(filename, data_only=True):
        for row in sheet.iter_rows():
            errors += sum(1 for cell in row if str(cell.value).startswith("#"))
    return {"status": "success", "code": done.returncode, "total_errors": errors}


print(json.dumps(recalc(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30)))
