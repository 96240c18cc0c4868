"""Tiny wheels, source distributions and npm packages, and a package index behind a Unix socket that serves them."""

import base64
import hashlib
import io
import json
import socketserver
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler

# Builds a wheel with nothing but the standard library, so that a source distribution needs no other package.
BUILD_BACKEND = '''
import zipfile
SEEN = None
{probe}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        info = "{name}-{version}.dist-info/"
        wheel.writestr("{name}.py", f"ORIGIN = 'source'\\nSEEN = {{SEEN!r}}\\n")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
'''


def make_wheel(folder, name, version, modules, requires=(), entry_points=""):
    """Writes a wheel with the given modules and returns its SHA-256 in hexadecimal."""
    stem = f"{name}-{version}.dist-info"
    fields = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    files = {f"{module}.py": text for module, text in modules.items()}
    files[f"{stem}/METADATA"] = "\n".join([*fields, *(f"Requires-Dist: {line}" for line in requires), ""])
    files[f"{stem}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if entry_points:
        files[f"{stem}/entry_points.txt"] = entry_points
    record = ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(text.encode())}\n"
            wheel.writestr(file, text)
        wheel.writestr(f"{stem}/RECORD", f"{record}{stem}/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_tarball(files):
    """Returns a gzipped tar with the given texts by path."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def make_source_distribution(folder, name, version, probe=""):
    """Writes a source distribution whose build backend is part of it. Code in `probe` may set SEEN of the module."""
    stem = f"{name}-{version}"
    files = {
        f"{stem}/PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}/pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        f"{stem}/backend.py": BUILD_BACKEND.format(name=name, version=version, probe=probe),
    }
    (folder / f"{stem}.tar.gz").write_bytes(make_tarball(files))


def make_registry(url, packages, files=()):
    """Returns the pages of a registry of npm by URL.

    `packages` has fields of package.json by name and version; `files` are further members of all tarballs.
    """
    pages, versions = {}, {}
    for (name, version), fields in packages.items():
        manifest = {"name": name, "version": version} | fields
        packed = make_tarball({
            "package/package.json": json.dumps(manifest), "package/index.js": f"module.exports = '{name} {version}';\n",
            **dict(files),
        })  # fmt: skip
        tarball = f"{url}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
        pages[tarball] = packed
        versions.setdefault(name, {})[version] = manifest | {"dist": {"tarball": tarball, "integrity": integrity}}
    for name, known in versions.items():
        document = {"name": name, "dist-tags": {"latest": list(known)[-1]}, "versions": known}
        pages[f"{url}/{name.replace('/', '%2f')}"] = json.dumps(document).encode()
    return pages


class IndexRequestHandler(BaseHTTPRequestHandler):
    """Answers absolute-form GET for the server's pages and refuses every other host, as the daemon's proxy does.

    A page that is a number is the status of an answer without a body.
    """

    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "unix"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.requested.append(self.path)
        page = self.server.pages.get(self.path, 404)
        self.answer(page, b"") if isinstance(page, int) else self.answer(200, page)

    def do_HEAD(self):
        self.do_GET()

    def do_CONNECT(self):
        self.server.requested.append(f"CONNECT {self.path}")
        self.answer(403, b"")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class SocketIndex(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """HTTP proxy on a Unix socket that serves pages by URL and records which URLs were requested."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path, pages):
        self.pages = pages
        self.requested = []
        super().__init__(str(path), IndexRequestHandler)
        path.chmod(0o666)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self):
        connection, _ = super().get_request()
        return connection, ("unix", 0)
