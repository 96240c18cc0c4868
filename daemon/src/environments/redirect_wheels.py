"""Finds the Python distributions that an interpreter can import, and writes redirect wheels of them.

A *redirect wheel* holds no code but a .pth file with the directories where the distribution's code is. With it, a
package of the image takes part in a resolution, and a virtual environment finds it. The daemon runs this file and
`build_environment.py` as one program.
"""

import sys

# With `-c` the first entry is the working directory, which holds files of the skill.
sys.path[:] = [entry for entry in sys.path if entry]

import base64
import hashlib
import os
import re
import zipfile
from importlib import metadata

VERSION = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)(?:[-_.]?(alpha|beta|preview|pre|rc|a|b|c)[-_.]?(\d*))?"
    r"(?:-(\d+)|[-_.]?(post|rev|r)[-_.]?(\d*))?(?:[-_.]?(dev)[-_.]?(\d*))?(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?"
)
PRE_RELEASE_TAGS = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


class VisibleDistribution:
    """Distribution that an interpreter can import: its normalized name and version, and what a redirect needs."""

    def __init__(self, distribution, name, version):
        self.name = name
        self.version = version
        self.directory = os.path.abspath(str(distribution.locate_file("")))
        self.extras = distribution.metadata.get_all("Provides-Extra") or []
        self.requires = [" ".join(line.split()) for line in distribution.metadata.get_all("Requires-Dist") or []]
        # A redirect hides the metadata of the real distribution, so it repeats what programs look up there.
        copied = {file: distribution.read_text(file) for file in ("entry_points.txt", "top_level.txt")}
        self.metadata_files = {file: text for file, text in copied.items() if text}


def normalize_name(name):
    """Returns the name of a distribution as indexes and resolvers compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def normalize_version(text):
    """Returns a version in the normal form of PEP 440, or None if it has none."""
    match = VERSION.fullmatch(text.strip().lower())
    if not match:
        return None
    epoch, release, pre, pre_number, implicit_post, post, post_number, dev, dev_number, local = match.groups()
    version = f"{int(epoch)}!" if epoch and int(epoch) else ""
    version += ".".join(str(int(part)) for part in release.split("."))
    version += f"{PRE_RELEASE_TAGS.get(pre, pre)}{int(pre_number or 0)}" if pre else ""
    version += f".post{int(implicit_post or post_number or 0)}" if implicit_post or post else ""
    version += f".dev{int(dev_number or 0)}" if dev else ""
    if local:
        parts = re.split(r"[-_.]", local)
        version += "+" + ".".join(str(int(part)) if part.isdigit() else part for part in parts)
    return version


def is_same_version(left, right):
    """Returns True if two normalized versions differ at most in zeros at the end of the release."""
    first, second = (re.sub(r"^((?:\d+!)?\d+(?:\.\d+)*?)(?:\.0)+(?![.\d])", r"\1", text) for text in (left, right))
    return first == second


def list_distributions(directories):
    """Returns the distributions in the given directories by name; the first of a name wins, as on import."""
    found = {}
    for distribution in metadata.distributions(path=directories):
        name, version = distribution.metadata["Name"], normalize_version(distribution.version or "")
        if name and version and normalize_name(name) not in found:
            found[normalize_name(name)] = VisibleDistribution(distribution, normalize_name(name), version)
    return found


def write_redirect_wheel(folder, distribution, path_file, directories, requires=()):
    """Writes a wheel without code, whose .pth file adds the directories where the distribution's code is."""
    stem = f"{distribution.name.replace('-', '_')}-{distribution.version}"
    fields = [("Metadata-Version", "2.1"), ("Name", distribution.name), ("Version", distribution.version)]
    fields += [("Provides-Extra", extra) for extra in distribution.extras]
    fields += [("Requires-Dist", line) for line in requires]
    files = {
        path_file: "".join(f"{directory}\n" for directory in directories),
        f"{stem}.dist-info/METADATA": "".join(f"{key}: {value}\n" for key, value in fields),
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: skilld\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files.update((f"{stem}.dist-info/{file}", text) for file, text in distribution.metadata_files.items())
    record = ""
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            data = text.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
            wheel.writestr(zipfile.ZipInfo(path), data)
        path = f"{stem}.dist-info/RECORD"
        wheel.writestr(zipfile.ZipInfo(path), f"{record}{path},,\n")

