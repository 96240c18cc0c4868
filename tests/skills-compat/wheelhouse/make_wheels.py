#!/usr/bin/env python3
"""Builds the wheels of the compatibility cases' own packages: make_wheels.py DIRECTORY [MEBIBYTES].

With a number, it also builds skilld-compat-large, which has one file of random bytes of this size. The bytes of a wheel depend on this file alone: fixed times, no compression, sorted names. So requirements can name
hashes. The program prints `SHA256  FILE` for every wheel. It needs the standard library only and no network.
"""

import base64
import hashlib
import random
import sys
import zipfile
from pathlib import Path

GREETING = '''"""Greetings in a few languages."""

__version__ = "{version}"

WORDS = {words!r}


def greet(name, language="en"):
    return f"{{WORDS[language]}}, {{name}}!"
'''

LETTERS = '''"""Short letters, made of greetings."""

import skilld_compat_greeting

__version__ = "1.0"


def letter(name, text, language="en"):
    return f"{skilld_compat_greeting.greet(name, language)}\\n\\n{text}\\n"
'''

SEALED = '''"""A package for which a test names a wrong hash."""

__version__ = "1.0"
'''

LARGE = '''"""A package with one large file."""
'''

# Name, version, requirements, the module's text.
PACKAGES = [
    ("skilld-compat-greeting", "1.0", [], GREETING.format(version="1.0", words={"en": "Hello", "de": "Hallo"})),
    (
        "skilld-compat-greeting",
        "1.1",
        [],
        GREETING.format(version="1.1", words={"en": "Hello", "de": "Hallo", "fr": "Bonjour"}),
    ),
    ("skilld-compat-letters", "1.0", ["skilld-compat-greeting>=1.0"], LETTERS),
    ("skilld-compat-sealed", "1.0", [], SEALED),
]


def make_wheel(directory, name, version, requires, text, data=b""):
    """Writes one wheel with one module, and data as its data.bin if there are any, and returns its path."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Requires-Python: >=3.9"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    files = {
        f"{module}/__init__.py": text,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: make_wheels\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files = {path: content.encode() for path, content in files.items()}
    if data:
        files[f"{module}/data.bin"] = data
    record = [f"{path},sha256={record_hash(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,\n"]).encode()
    path = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for entry, content in files.items():
            item = zipfile.ZipInfo(entry, (2020, 1, 1, 0, 0, 0))
            item.create_system, item.external_attr = 3, 0o644 << 16
            wheel.writestr(item, content)
    return path


def record_hash(content):
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make_wheels.py DIRECTORY [MEBIBYTES]")
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    packages = list(PACKAGES)
    for mebibytes in sys.argv[2:]:
        packages.append(("skilld-compat-large", "1.0", [], LARGE, random.Random(0).randbytes(int(mebibytes) << 20)))
    for package in packages:
        path = make_wheel(directory, *package)
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")


if __name__ == "__main__":
    main()
