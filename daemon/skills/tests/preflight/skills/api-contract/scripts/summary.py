import sys
import warnings

try:
    from openapi_spec_validator import validate
except ImportError as error:
    raise SystemExit(f"pip install openapi-spec-validator ({error})")

import yaml

spec = yaml.safe_load(open(sys.argv[1], encoding="utf-8"))
with warnings.catch_warnings():
    validate(spec)
for path, methods in spec["paths"].items():
    print(path, ", ".join(methods))
