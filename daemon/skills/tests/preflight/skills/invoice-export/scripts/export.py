#!/usr/bin/env python3
import json
import sys

try:
    import openpyxl
except ImportError:
    print("Error: openpyxl is required. Install it with: pip install openpyxl", file=sys.stderr)
    sys.exit(1)

try:
    from pypdf import PdfReader
except ImportError:
    from PyPDF2 import PdfReader

try:
    import simplejson as jsonlib
except ImportError:
    import json as jsonlib

book = openpyxl.Workbook()
print(book, PdfReader, jsonlib, sys.argv)
