"""Builds of environments in containers as tight as workspaces: what the tests of this folder have in common."""

import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
import unittest
import uuid
from pathlib import Path

from sample_packages import SocketIndex, make_source_distribution, make_wheel

IMAGE = os.environ.get("SKILLD_TEST_IMAGE", "skilld/base:latest")
FOLDER = Path(__file__).resolve().parents[2] / "daemon/src/environments"
# As the daemon does.
FILES = ("redirect_wheels.py", "inferred_packages.py", "build_node_packages.py", "build_environment.py")
SCRIPT = "".join((FOLDER / name).read_text() for name in FILES)
ENVIRONMENT = "/opt/skilld/environments/sample"
UID = "200001"
GREETER = "import sys\n\ndef main():\n    print('hello from', sys.prefix)\n\ndef plug():\n    return 'plugged in'\n"
ENTRY_POINTS = "[console_scripts]\ngreet = greeter:main\n\n[greeter.plugins]\nown = greeter:plug\n"
# Place of the index that a test serves.
INDEX = {"index_url": "http://index.test/simple", "proxy_socket": "/run/skilld/index.sock"}


def run_container(image, command, *options):
    """Runs a command in a container that is configured like a workspace's, and returns the completed process."""
    hardening = [
        "--rm", "--label", "io.skilld.test=environments", "--user", f"{UID}:{UID}", "--read-only", "--network", "none",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", "1g", "--pids-limit", "512",
        "--tmpfs", f"/workspace:exec,uid={UID},gid={UID},mode=0700,size=256m", "--tmpfs", "/tmp:exec,mode=1777",
        "--env", "HOME=/workspace",
    ]  # fmt: skip
    name = f"skilld-test-{uuid.uuid4().hex}"
    try:
        return subprocess.run(
            ["docker", "run", "--name", name, *hardening, *options, image, *command], capture_output=True, timeout=600
        )
    except BaseException:
        # Also at Ctrl-C: the container outlives its client.
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
        raise


class BuildResult:
    """Outcome of one run of the script: its exit status, its messages and the tar."""

    def __init__(self, process):
        self.code = process.returncode
        self.lines = process.stderr.decode().splitlines()
        self.reason = self.lines[-1] if self.lines else ""
        self.tar = process.stdout

    def entries(self):
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as archive:
            return archive.getmembers()

    def environment(self):
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as archive:
            return json.load(archive.extractfile("environment.json"))

    def unpack(self, folder):
        """Unpacks as the daemon does: refuses links that lead out, then links the interpreter into the environment."""
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as archive:
            archive.extractall(folder, filter="data")
        python = self.environment()["python"]
        for name in ("python", "python3", Path(python["executable"]).name) if python else ():
            (folder / "venv/bin" / name).symlink_to(python["executable"])
        return folder


class EnvironmentCase(unittest.TestCase):
    """Folder of the class with a wheelhouse, and the calls that build and use environments."""

    image = IMAGE

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name)
        cls.wheelhouse = cls.root / "wheelhouse"
        cls.wheelhouse.mkdir()
        cls.greeter_hash = make_wheel(
            cls.wheelhouse, "greeter", "1.0", {"greeter": GREETER}, ["idna>=3"], ENTRY_POINTS
        )  # fmt: skip
        make_wheel(cls.wheelhouse, "strict", "1.0", {"strict": ""}, ["greeter<1"])
        make_wheel(cls.wheelhouse, "idna", "99.0", {"idna": "ORIGIN = 'environment'"})
        make_source_distribution(cls.wheelhouse, "unbuilt", "1.0")

    @classmethod
    def build(cls, *mounts, prologue="", python="/usr/bin/python3", **changes):
        """Runs the script on files given by name, with options that differ from an offline build's."""
        files = {name: changes.pop(name) for name in list(changes) if "." in name}
        source = Path(tempfile.mkdtemp(dir=cls.root))
        source.chmod(0o755)
        for name, text in files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if isinstance(text, str) else json.dumps(text))
        options = {
            "name": "sample", "source": "/workspace/work/build", "index_url": "", "node_index_url": "",
            "proxy_socket": None, "wheelhouse": "/opt/skilld/wheelhouse", "source_builds": False, "node_projects": [],
        } | changes  # fmt: skip
        stage = f'mkdir work && cp -r /source work/build && {prologue} exec {python} -c "$0" "$1"'
        started = time.monotonic()
        process = run_container(
            cls.image, ["bash", "-c", stage, SCRIPT, json.dumps(options)],
            "--volume", f"{source}:/source:ro", "--volume", f"{cls.wheelhouse}:/opt/skilld/wheelhouse:ro", *mounts,
        )  # fmt: skip
        result = BuildResult(process)
        seconds = time.monotonic() - started
        print(f"  built {sorted(files)}: exit {result.code}, {len(result.tar)} bytes, {seconds:.1f} s")
        return result

    def built(self, *mounts, **changes):
        """Builds an environment that must succeed."""
        result = self.build(*mounts, **changes)
        self.assertEqual(result.code, 0, "\n".join(result.lines))
        return result

    def refused(self, *words, code=3, **changes):
        """Builds an environment that must fail with a last line that has the given words, and without a tar."""
        result = self.build(**changes)
        self.assertEqual((result.code, result.tar), (code, b""), "\n".join(result.lines))
        for word in words:
            self.assertIn(word, result.reason)
        return result

    def use(self, tree, script, *mounts):
        """Runs a shell script beside the read-only environment, as a workspace would, and returns its output."""
        tree.chmod(0o755)
        process = run_container(
            self.image, ["bash", "-euc", script], "--volume", f"{tree}:{ENVIRONMENT}:ro",
            "--env", f"VIRTUAL_ENV={ENVIRONMENT}/venv",
            "--env", f"PATH={ENVIRONMENT}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "--env", "UV_OFFLINE=1", "--env", f"UV_FIND_LINKS={ENVIRONMENT}/wheels",
            "--env", f"NODE_PATH={ENVIRONMENT}/node/0/node_modules", *mounts,
        )  # fmt: skip
        self.assertEqual(process.returncode, 0, process.stderr.decode())
        return process.stdout.decode().splitlines()

    def serve(self, pages):
        folder = Path(tempfile.mkdtemp(dir=self.root))
        folder.chmod(0o755)
        index = SocketIndex(folder / "index.sock", pages)
        self.addCleanup(index.server_close)
        self.addCleanup(index.shutdown)
        return index, ("--volume", f"{folder}:/run/skilld:ro")
