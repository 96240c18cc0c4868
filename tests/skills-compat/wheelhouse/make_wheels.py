#!/usr/bin/env python3
"""Builds the compatibility cases' own packages: make_wheels.py DIRECTORY [MEBIBYTES].

It writes wheels into DIRECTORY, and packages of Node.js into DIRECTORY/npm. With a number, it also writes the wheel
skilld-compat-large, which has one file of random bytes of this size. Their bytes depend on this file alone: fixed times,
no compression, sorted names. So requirements and lock files can name hashes. The program prints `SHA256  FILE` for every
wheel and `INTEGRITY  FILE` for every package of Node.js. It needs the standard library only and no network.
"""

import base64
import hashlib
import io
import json
import random
import sys
import tarfile
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

# Text of an ES module, of a CommonJS module, and of one that imports another package.
UNITS = "export const version = \"{version}\";\nexport const toMiles = (km) => km / 1.609344;\n"
UNITS_COMMON = "exports.version = \"{version}\";\nexports.toMiles = (km) => km / 1.609344;\n"
TABLES = "import { toMiles } from \"skilld-compat-units\";\nexport const row = (km) => `${km} km = ${toMiles(km).toFixed(1)} mi`;\n"

# Name, version, dependencies, files.
NODE_PACKAGES = [
    (
        "skilld-compat-units",
        version,
        {},
        {"index.mjs": UNITS.format(version=version), "index.cjs": UNITS_COMMON.format(version=version)},
    )
    for version in ("1.0.0", "2.0.0")
] + [("skilld-compat-tables", "1.0.0", {"skilld-compat-units": "^1.0.0"}, {"index.mjs": TABLES})]


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


def make_node_package(directory, name, version, dependencies, files):
    """Writes one package of Node.js as a tar, and returns its path. npm reads it with and without compression."""
    manifest = {"name": name, "version": version, "dependencies": dependencies}
    manifest["exports"] = {"import": "./index.mjs"} | ({"require": "./index.cjs"} if "index.cjs" in files else {})
    path = directory / f"{name}-{version}.tgz"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for file, content in sorted({**files, "package.json": json.dumps(manifest)}.items()):
            entry = tarfile.TarInfo(f"package/{file}")
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))
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
    node_directory = directory / "npm"
    node_directory.mkdir(exist_ok=True)
    for package in NODE_PACKAGES:
        path = make_node_package(node_directory, *package)
        digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
        print(f"sha512-{digest}  {path.name}")


if __name__ == "__main__":
    main()
