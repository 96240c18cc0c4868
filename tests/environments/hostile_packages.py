"""Packages that attack the build which installs them: hostile_packages.py DIRECTORY.

| package | attack |
|---|---|
| hostile-start | a .pth file, which Python runs at its start |
| hostile-paths | members that lead out of the wheel, and names of devices |
| hostile-links | a member that is a link out of the wheel |
| hostile-name | a member whose name other systems read as a path |
| hostile-bomb | 800 MiB in a wheel of less than 1 MiB |
| hostile-size | a wheel of 80 MiB |
| hostile-source | a source distribution, whose build runs code |
| hostile-scripts | an npm package with install scripts |
"""

import json
import os
import stat
import sys
import zipfile
from pathlib import Path

from sample_packages import make_source_distribution, make_tarball

# Code of a package that says where it ran and what it could reach.
PROBE = '''
import os, socket
def reach(address):
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError as error:
        return os.strerror(error.errno)
    return "reached"
SEEN = (os.uname().nodename, reach(("192.0.2.1", 80)))
'''
MIB = bytes(1 << 20)


def make_raw_wheel(folder, name, members, compression=zipfile.ZIP_DEFLATED):
    """Writes a wheel of version 1.0 with members as (name or ZipInfo, content); a list of pieces is written in turn."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = [(f"{module}.py", "ORIGIN = 'wheel'\n"), *members]
    members += [(f"{info}/METADATA", metadata), (f"{info}/WHEEL", wheel)]
    record = f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w", compression, compresslevel=1) as archive:
        for member, content in members:
            item = member if isinstance(member, zipfile.ZipInfo) else zipfile.ZipInfo(member)
            item.compress_type = compression
            record += f"{item.filename},,\n"
            with archive.open(item, "w") as file:
                for piece in content if isinstance(content, list) else [content]:
                    file.write(piece.encode() if isinstance(piece, str) else piece)
        archive.writestr(f"{info}/RECORD", record)


def make_hostile_packages(folder):
    """Writes all packages into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    start = "import os; open('/workspace/work/environment/tree/ran', 'w')\n"
    make_raw_wheel(folder, "hostile-start", [("hostile_start.pth", start)])
    paths = ["../../../../../../../../workspace/out/climbed", "/tmp/absolute", "CON", "nul.py", "dev/null", "LPT1.txt"]
    make_raw_wheel(folder, "hostile-paths", [(path, "x") for path in paths])
    link = zipfile.ZipInfo("hostile_link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    make_raw_wheel(folder, "hostile-links", [(link, "/etc/passwd")])
    make_raw_wheel(folder, "hostile-name", [("a\\..\\b.py", "x")])
    make_raw_wheel(folder, "hostile-bomb", [("zeros.bin", [MIB] * 800)])
    make_raw_wheel(folder, "hostile-size", [("random.bin", [os.urandom(80 << 20)])], zipfile.ZIP_STORED)
    make_source_distribution(folder, "hostile_source", "1.0", PROBE)
    scripts = {key: "touch ran && exit 1" for key in ("preinstall", "install", "postinstall", "prepare")}
    manifest = {"name": "hostile-scripts", "version": "1.0.0", "scripts": scripts}
    packed = make_tarball({"package/package.json": json.dumps(manifest), "package/index.js": "module.exports = 'x'"})
    (folder / "npm").mkdir(exist_ok=True)
    (folder / "npm/hostile-scripts-1.0.0.tgz").write_bytes(packed)
    dist = {"tarball": "https://registry.npmjs.org/hostile-scripts/-/hostile-scripts-1.0.0.tgz"}
    document = {"name": "hostile-scripts", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": manifest | {"dist": dist}}}
    (folder / "npm/hostile-scripts").write_text(json.dumps(document))


if __name__ == "__main__":
    make_hostile_packages(Path(sys.argv[1]))
