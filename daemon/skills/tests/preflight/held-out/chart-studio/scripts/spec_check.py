#!/usr/bin/env python3
import json, pathlib, sys
from jsonschema import Draft202012Validator
from yaml import safe_load

here = pathlib.Path(__file__).resolve().parent
schema = json.loads((here.parent / "assets" / "spec.schema.json").read_text())
errs = sorted(Draft202012Validator(schema).iter_errors(safe_load(open(sys.argv[1]))), key=str)
for e in errs:
    print("/".join(map(str, e.path)), e.message, file=sys.stderr)
sys.exit(bool(errs))
