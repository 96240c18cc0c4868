"""Content of the package and of its wheel."""

import subprocess
import sys
import typing
from importlib import metadata
from pathlib import Path

import pytest

import skilld

SOURCES = Path(__file__).parents[1]


def test_blocking_classes_are_generated_from_the_others():
    subprocess.run([sys.executable, str(SOURCES / "generate_sync.py"), "--check"], check=True)


def test_import_loads_two_modules():
    program = "import sys; before = set(sys.modules); import skilld; print(*sorted(set(sys.modules) - before))"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert modules == ["skilld", "skilld._skilld"]


@pytest.mark.parametrize("kind", ["Sandbox", "AsyncSandbox", "Commands", "Filesystem", "CommandHandle", "SandboxInfo"])
def test_annotations_can_be_evaluated(kind):
    checked = [getattr(skilld, kind), skilld.run, skilld.arun]
    checked += [value for value in vars(checked[0]).values() if callable(value)]
    for function in checked:
        typing.get_type_hints(function)


def test_wheel_is_typed_and_needs_nothing():
    package = metadata.distribution("skilld")
    assert package.version == skilld.__version__
    assert not package.requires
    files = {str(path) for path in package.files}
    assert {"skilld/py.typed", "skilld/_skilld.pyi", "skilld/_sync/sandbox.py"} <= files
    assert not [path for path in files if path.startswith(("tests/", "benches/"))]


def test_both_kinds_have_the_same_methods_and_documentation():
    for name in ("Sandbox", "Commands", "CommandHandle", "Pty", "Filesystem", "Artifacts"):
        blocking, awaited = getattr(skilld, name), getattr(skilld, f"Async{name}")
        public = {method for method in dir(blocking) if not method.startswith("_")}
        assert public == {method for method in dir(awaited) if not method.startswith("_")}
        for method in public:
            assert getattr(blocking, method).__doc__, f"{name}.{method}"
