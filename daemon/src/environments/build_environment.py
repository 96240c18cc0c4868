"""Builds the environment of a skill inside a container of its image, and writes it to stdout as a tar.

The daemon runs `redirect_wheels.py`, `inferred_packages.py`, `build_node_packages.py` and this file as one program,
`python3 -c TEXT OPTIONS`, with OPTIONS in JSON: `name` of the environment, `source` (folder with requirements.txt, with
node/N for each project of Node.js, and with authorities.pem if the operator's certificate authorities count beside
those of the image), `node_projects` (`folder` of each in node/N, `has_added` if its lock file lacks some, and the names that were `inferred`),
`inferred` (module by requirement), `note` (first warning), `index_url` and `node_index_url` ("" is offline),
`proxy_socket` and `wheelhouse` (null or a path), `source_builds`. Messages go to stderr. Exit status: 0 for success, 3
if the need cannot be met, 1 for any other failure; the last line on stderr is then the reason.
"""

import errno
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from collections import deque
from pathlib import Path

ENVIRONMENTS_ROOT = Path("/opt/skilld/environments")
# Lines at the start of a tool's output that are passed on, and lines at its end that are searched for the reason.
REPORTED_LINES_MAX = 1000
SEARCHED_LINES_MAX = 200
# Characters of a line, and of a quoted reason.
OUTPUT_LINE_MAX = 1000
REASON_MAX = 800
PROXY_CONNECTIONS_MAX = 64
COMPILE_WORKERS = 4
TAR_BUFFER_BYTES = 1 << 18
CERTIFICATE_FILE = "/etc/ssl/certs/ca-certificates.crt"
# Variables of the image that the tools see. The rest could change what they install.
KEPT_VARIABLES = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
# Warnings of a report, and characters of one.
WARNINGS_MAX = 20
WARNING_CHARS_MAX = 300

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)[^@/\\]*")
HASH_OPTION = re.compile(r"\s--hash[= ](sha256:[0-9a-f]{64})(?!\S)")
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)")

class BuildError(Exception):
    """Failure of the build that says nothing about the need."""


class NeedError(Exception):
    """Need that the image, the wheelhouse and the index cannot meet."""


class SocketForwarder:
    """TCP port on the loopback interface whose connections are forwarded to the Unix socket of the daemon's proxy."""

    def __init__(self, socket_path):
        self.socket_path = socket_path
        self.free_connections = threading.BoundedSemaphore(PROXY_CONNECTIONS_MAX)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept_connections, daemon=True).start()

    def accept_connections(self):
        """Accepts connections for ever; beyond the maximum they wait in the kernel's queue."""
        while True:
            self.free_connections.acquire()
            client, _ = self.listener.accept()
            threading.Thread(target=self.forward_connection, args=(client,), daemon=True).start()

    def forward_connection(self, client):
        """Copies both directions of one connection until both have ended."""
        try:
            with client, socket.socket(socket.AF_UNIX) as upstream:
                upstream.connect(self.socket_path)
                sender = threading.Thread(target=copy_stream, args=(client, upstream), daemon=True)
                sender.start()
                copy_stream(upstream, client)
                sender.join()
        except OSError as error:
            report(f"proxy socket {self.socket_path}: {error}")
        finally:
            self.free_connections.release()


def copy_stream(source, target):
    """Copies bytes to the end of the source, then ends the target's direction; an error ends the whole connection."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The other side has closed it.


def report(message):
    """Writes one line to stderr."""
    print(message, file=sys.stderr, flush=True)


class EnvironmentBuilder:
    """One build: its options, its own folder and the environment variables of the tools."""

    def __init__(self, options, folder):
        self.options = options
        self.source = Path(options["source"])
        self.folder = folder
        self.tree = folder / "tree"
        self.tree.mkdir()
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        self.variables = {key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ}
        if os.path.isfile(CERTIFICATE_FILE):
            # The image's certificates include those that its operator added; uv and Node bring their own otherwise.
            self.variables.setdefault("SSL_CERT_FILE", CERTIFICATE_FILE)
            self.variables.setdefault("NODE_EXTRA_CA_CERTS", CERTIFICATE_FILE)
        if (self.source / "authorities.pem").is_file():
            self.add_authorities((self.source / "authorities.pem").read_bytes())
        self.variables.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"), NO_COLOR="1")
        self.variables.update(UV_CACHE_DIR=str(folder / "uv-cache"), UV_NO_PROGRESS="1")
        self.variables.update(UV_CONFIG_FILE=str(folder / "uv.toml"))
        # Cache and environment lie in one tmpfs, so hard links keep the memory of every file single.
        self.variables.update(UV_PYTHON_DOWNLOADS="never", UV_LINK_MODE="hardlink", UV_CONCURRENT_DOWNLOADS="16")
        self.variables.update(UV_HTTP_RETRIES="2")
        if options.get("proxy_socket"):
            url = SocketForwarder(options["proxy_socket"]).url
            for key in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                self.variables.update({key: url, key.lower(): url})
        lists = ("packages", "provided", "node_packages", "node_provided", "python_modules", "warnings")
        self.result = {"version": 1, "python": None} | {name: [] for name in lists}
        if options.get("note"):
            self.warn(options["note"])

    def add_authorities(self, own):
        """Lets the tools trust the operator's authorities beside those of the image."""
        image = Path(self.variables.get("SSL_CERT_FILE", CERTIFICATE_FILE))
        trusted = self.folder / "authorities.pem"
        trusted.write_bytes((image.read_bytes() if image.is_file() else b"") + b"\n" + own)
        for key in ("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"):
            self.variables[key] = str(trusted)

    def warn(self, text):
        """Adds a warning for people to the report, which has a bounded number of them."""
        text = "".join(char if char.isprintable() else " " for char in text)
        text = text if len(text) <= WARNING_CHARS_MAX else f"{text[: WARNING_CHARS_MAX - 1]}…"
        warnings = self.result["warnings"]
        if text not in warnings and len(warnings) < WARNINGS_MAX:
            warnings.append(text if len(warnings) < WARNINGS_MAX - 1 else "further warnings are left out")
            report(f"warning: {warnings[-1]}")

    def find_tool(self, name):
        """Returns the path of a program of the image."""
        program = shutil.which(name, path=self.variables.get("PATH"))
        if program is None:
            raise NeedError(f"the image has no {name}: use an image that has it, or remove the need")
        return program

    def run_tool(self, name, *arguments, working_directory=None, is_quiet=False):
        """Runs uv or npm, passes on the lines of its stderr as they come, and returns success and the last lines."""
        command = [self.find_tool(name), *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=working_directory or self.folder, env=self.variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        lines = deque(maxlen=SEARCHED_LINES_MAX)
        for number, line in enumerate(iter(lambda: process.stderr.readline(OUTPUT_LINE_MAX), b"")):
            lines.append(line.decode(errors="replace").rstrip())
            if number < REPORTED_LINES_MAX and not is_quiet:
                report(f"{name}: {lines[-1]}")
        succeeded, output = process.wait() == 0, "\n".join(lines)
        if not succeeded and re.search(r"No space left on device|\bENOSPC\b", output):
            match = re.search(r"Failed to (?:download|install|build|unzip)[^`\n]*`([^`]+)`", output)
            raise full_disk_error(match and match[1])
        return succeeded, output

    def build_python(self):
        """Resolves requirements.txt, installs what the image lacks, and writes the redirect wheels."""
        requirements, user_hashes = self.read_requirements()
        image = list_distributions(sys.path)
        image_directories = list(dict.fromkeys(item.directory for item in image.values()))
        missing = {}
        resolve = lambda lines: self.resolve_requirements(lines, image, image_directories)
        for name, (version, hashes) in resolve_inferred(self, requirements, resolve).items():
            if name in image and is_same_version(version, image[name].version):
                self.result["provided"].append({"name": name, "version": version})
            else:
                missing[name] = (version, user_hashes.get(name) or hashes)
        site_packages = self.install_packages(missing)
        self.write_wheels(site_packages, image, image_directories)

    def read_requirements(self):
        """Returns the requirements without their hashes, and the hashes by package."""
        text = (self.source / "requirements.txt").read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        hashes = {}
        for index, line in enumerate(lines):
            lines[index] = HASH_OPTION.sub("", line)
            if not REQUIREMENT.fullmatch(lines[index]) or " --" in lines[index]:
                advice = "write NAME or NAME==VERSION, and hashes as --hash=sha256:DIGEST"
                raise NeedError(f"requirements.txt: {line[:200]!r} is not understood: {advice}")
            hashes.setdefault(requirement_name(line), []).extend(HASH_OPTION.findall(line))
        return lines, hashes

    def write_uv_configuration(self):
        """Writes uv's only configuration file. It says where packages come from if there is an index."""
        indexes = []
        if self.uses_index:
            indexes.append({"name": "index", "url": self.options["index_url"], "default": True})
            if self.options.get("wheelhouse"):
                indexes.insert(0, {"name": "wheelhouse", "url": str(self.link_wheelhouse()), "format": "flat"})
        # A package that the wheelhouse has in any version never comes from the index, where a stranger may have
        # registered its name.
        text = 'index-strategy = "first-index"\n'
        for index in indexes:
            text += "[[index]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in index.items())
        Path(self.variables["UV_CONFIG_FILE"]).write_text(text, encoding="utf-8")

    def link_wheelhouse(self):
        """Returns a folder with links to the wheelhouse's files and to the redirect wheels of the same packages."""
        folder = self.redirects.with_name(f"{self.redirects.name}-and-wheelhouse")
        if folder.is_dir():
            return folder
        folder.mkdir()
        offered = list(Path(self.options["wheelhouse"]).iterdir())
        names = {distribution_name(path) for path in offered}
        for path in [*offered, *(path for path in self.redirects.iterdir() if distribution_name(path) in names)]:
            (folder / path.name).symlink_to(path)
        return folder

    def package_arguments(self):
        """Returns the options of uv that say which packages exist besides those of the configuration file."""
        arguments = ["--find-links", self.redirects]
        if not self.uses_index:
            # Without indexes uv ignores those of the configuration file too.
            arguments += ["--no-index"]
            arguments += ["--find-links", self.options["wheelhouse"]] if self.options.get("wheelhouse") else []
        return arguments + ([] if self.options.get("source_builds") else ["--only-binary", ":all:"])

    def run_uv(self, *arguments, is_quiet=False):
        """Runs uv and sorts its failures into those of the need and others."""
        succeeded, output = self.run_tool("uv", *arguments, is_quiet=is_quiet)
        if succeeded:
            return
        if match := re.search(r"Hash mismatch for `([^`]+)`", output):
            raise NeedError(f"package {match[1]} has another hash than the skill states: correct hash or version")
        if match := re.search(r"[Ff]ailed to build `([^`]+)`", output):
            raise NeedError(f"package {match[1]} cannot be built from its source: choose a version with a wheel")
        # The causes follow the headline, and hints follow the causes.
        reason = quote_reason(re.split(r"cause:|╰─▶", output, maxsplit=1)[-1].split("hint:")[0])
        if "No solution found" not in output:
            raise BuildError(f"uv {arguments[0]} failed: {reason}")
        advice = "choose versions that exist and fit together"
        if not self.options.get("index_url"):
            advice = "choose versions that the image has, or add wheels to the wheelhouse"
        if names := sorted(set(re.findall(r"Wheels are required for `([^`]+)`", output))):
            reason = f"no usable wheel of {', '.join(names)}: {reason}"
            advice = "choose a version with a wheel for this Python, or let the operator allow source builds"
        raise NeedError(f"its Python requirements cannot be met: {reason}: {advice}")

    def resolve_requirements(self, requirements, image, image_directories):
        """Returns version and hashes of every package of the resolution, which prefers the image's versions.

        What image and wheelhouse meet needs no index, so that it is met also while the index is down.
        """
        has_index = bool(self.options.get("index_url"))
        report(f"resolving {len(requirements)} requirements")
        attempts = [(True, False), (True, True), (False, True)] if has_index else [(True, False), (False, False)]
        for with_extras, self.uses_index in attempts:
            self.write_redirects(image, image_directories, with_extras)
            self.write_uv_configuration()
            is_trial = has_index and not self.uses_index
            try:
                return self.compile_pins(requirements, image, is_quiet=is_trial)
            except (BuildError, NeedError) as error:
                if is_trial:
                    continue
                if not with_extras or isinstance(error, BuildError):
                    raise
                # An extra of many packages is still of use where one of them is absent.
                report(f"warning: an extra of a package of the image may be incomplete: {error}")

    def write_redirects(self, image, image_directories, with_extras):
        """Writes the redirect wheels of the image's packages, with or without the dependencies of their extras."""
        self.redirects = self.folder / ("redirects" if with_extras else "redirects-without-extras")
        if self.redirects.is_dir():
            return
        self.redirects.mkdir()
        for item in image.values():
            # Packages of Debian leave out dependencies that they do not need.
            requires = [
                line for line in item.requires
                if (with_extras if is_extra_line(line) else requirement_name(line) in image)
            ]  # fmt: skip
            write_redirect_wheel(self.redirects, item, f"{item.name}.pth", image_directories, requires)

    def compile_pins(self, requirements, image, is_quiet):
        """Resolves the requirements with uv, and returns version and hashes by package."""
        wanted, pinned = self.folder / "requirements.in", self.folder / "pins.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        # uv keeps the pins of an existing output file where they satisfy the requirements.
        pinned.write_text("".join(f"{item.name}=={item.version}\n" for item in image.values()))
        self.run_uv(
            "pip", "compile", wanted, "--output-file", pinned, "--python", sys.executable, *self.package_arguments(),
            "--generate-hashes", "--no-header", "--no-annotate", is_quiet=is_quiet,
        )  # fmt: skip
        pins, hashes = {}, []
        for line in pinned.read_text().splitlines():
            if match := PIN.match(line):
                hashes = []
                pins[normalize_name(match["name"])] = (normalize_version(match["version"]), hashes)
            hashes.extend(HASH_OPTION.findall(line))
        return pins

    def install_packages(self, packages):
        """Makes the virtual environment, installs the packages into it and returns its site-packages directory."""
        venv = self.tree / "venv"
        self.run_uv("venv", "--python", sys.executable, "--relocatable", "--system-site-packages", venv)
        for path in (venv / "bin").iterdir():
            # Activation scripts for other shells.
            if path.name != "activate" and not path.is_symlink():
                path.unlink()
        if packages:
            report(f"installing {len(packages)} packages")
            pinned = self.folder / "install.txt"
            with open(pinned, "w", encoding="utf-8") as file:
                for name, (version, hashes) in packages.items():
                    options = " ".join(f"--hash={item}" for item in hashes)
                    file.write(f"{name}=={version} {options}\n")
                    self.result["packages"].append({"name": name, "version": version, "hashes": hashes})
            self.run_uv(
                "pip", "install", "--requirements", pinned, "--python", venv / "bin" / "python",
                *self.package_arguments(), "--no-deps", "--require-hashes",
            )  # fmt: skip
            self.compile_bytecode(venv)
        interpreter = os.path.realpath(venv / "bin" / "python")
        self.result["python"] = {"executable": interpreter, "version": platform.python_version()}
        for path in [*venv.iterdir(), *(venv / "bin").iterdir()]:
            # The daemon makes the links to the interpreter, which lead out of the tree. Locks and markers are uv's own.
            is_marker = path.parent == venv and path.is_file() and path.name != "pyvenv.cfg"
            if is_marker or (path.is_symlink() and path.parent != venv):
                path.unlink()
        return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def compile_bytecode(self, venv):
        """Compiles all installed modules; a module that cannot be compiled stays as it is.

        uv would start the environment's own Python, which runs code in the .pth files of packages.
        """
        command = [sys.executable, "-I", "-S", "-m", "compileall", "-qq", "-j", str(COMPILE_WORKERS)]
        # The tree is read-only and its files have no mtime: byte code must be valid without a look at the source.
        command += ["--invalidation-mode", "unchecked-hash", str(venv / "lib")]
        subprocess.run(command, env=self.variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def write_wheels(self, site_packages, image, image_directories):
        """Writes redirect wheels of all that the environment can import, for virtual environments made later."""
        wheels = self.tree / "wheels"
        wheels.mkdir()
        mounted = str(ENVIRONMENTS_ROOT / self.options["name"] / site_packages.relative_to(self.tree))
        installed = list_distributions([str(site_packages)])
        # Python reads .pth files by name: late, and those of the environment before those of the image.
        for name, item in installed.items():
            write_redirect_wheel(wheels, item, f"zz_skilld_environment_{name}.pth", [mounted, *image_directories])
        for name, item in image.items():
            if name not in installed:
                write_redirect_wheel(wheels, item, f"zz_skilld_image_{name}.pth", image_directories)
        modules = {path.name.split(".")[0] for path in site_packages.iterdir() if is_importable(path)}
        self.result["python_modules"] = sorted(modules)
        if sys.prefix != sys.base_prefix:
            # The image's Python is a virtual environment itself, which --system-site-packages leaves out.
            (site_packages / "zz_skilld_image.pth").write_text("".join(f"{item}\n" for item in image_directories))

    def build_node(self):
        """Installs the packages of each project of Node.js."""
        projects = self.options.get("node_projects", [])
        for number, project in enumerate(projects):
            NodeProject(self, number, **project).install()
        self.result["node_projects"] = len(projects)

    def write_tar(self, stream):
        """Writes environment.json and the tree, sorted and without owners and times."""
        with tarfile.open(fileobj=stream, mode="w|", bufsize=TAR_BUFFER_BYTES, format=tarfile.GNU_FORMAT) as archive:
            data = json.dumps(self.result).encode()
            first = tarfile.TarInfo("environment.json")
            first.size = len(data)
            archive.addfile(first, io.BytesIO(data))
            for name in sorted(os.listdir(self.tree)):
                archive.add(self.tree / name, name, filter=reset_entry)
        stream.flush()


def reset_entry(entry):
    """Removes from an entry of the tar what differs between two builds."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644 if entry.isreg() and not entry.mode & 0o111 else 0o755
    return entry


def quote_reason(text):
    """Returns a tool's message as a part of one line, of bounded length."""
    text = re.sub(r"\.? And (because)", r"; and \1", " ".join(re.sub("[│├╰▶]", " ", text).split())).rstrip(".")
    # The conclusion is at the end.
    return text[:1].lower() + text[1:] if len(text) <= REASON_MAX else f"… {text[-REASON_MAX:]}"


def full_disk_error(package=None):
    """Returns the error of packages that do not fit, which names the one that was written if it is known."""
    cause = f" when {package} was unpacked" if package else ""
    advice = "depend on less, or let the operator raise skills.build_disk"
    return NeedError(f"the packages are too large: the disk of the build was full{cause}: {advice}")


def requirement_name(line):
    """Returns the normalized name at the start of a requirement."""
    match = REQUIREMENT.match(line)
    return normalize_name(match["name"]) if match else ""


def distribution_name(path):
    """Returns the normalized name of the distribution in a wheel or source archive; "" for another file."""
    match = re.match(r"(.+?)-\d", path.name)
    return normalize_name(match[1]) if match else ""


def is_extra_line(line):
    """Returns True if a Requires-Dist line belongs to an extra."""
    return re.search(r";.*\bextra\b", line) is not None


def is_importable(path):
    """Returns True if an entry of site-packages is a module or a package."""
    name, is_module = path.name.split(".")[0], path.suffix in (".py", ".pyc", ".so")
    return name.isidentifier() and name != "__pycache__" and (is_module or (path.is_dir() and name == path.name))


def build_environment(options, stream):
    """Builds the environment and writes the tar to the stream."""
    source = Path(options["source"])
    # Byte code names the folder, so its name is the same in every build.
    folder = source.parent / "environment"
    folder.mkdir()
    builder = EnvironmentBuilder(options, folder)
    if (source / "requirements.txt").is_file():
        builder.build_python()
    builder.build_node()
    builder.write_tar(stream)


def main():
    """Runs the build and turns its outcome into the exit status."""
    try:
        build_environment(json.loads(sys.argv[1]), sys.stdout.buffer)
    except NeedError as error:
        report(error)
        return 3
    except (BuildError, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            report(full_disk_error())
            return 3
        report(f"the build failed: {error}")
        return 1
    except Exception as error:  # The last line is the reason, also where this program is wrong.
        report(f"the build failed: {type(error).__name__}: {quote_reason(str(error))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
