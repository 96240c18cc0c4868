import sys
import json

try:
    import orjson
except ModuleNotFoundError:
    orjson = None

try:
    import tomllib
except ImportError:
    import tomli as tomllib

try:
    from rich import print
except Exception:
    pass

try:
    import readline  # noqa: F401
except ImportError:
    pass


def dumps(value):
    if orjson:
        return orjson.dumps(value).decode()
    return json.dumps(value, indent=2)


print(dumps(json.load(open(sys.argv[1]))))
