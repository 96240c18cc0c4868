"""Runs the build script of daemon/src/environments in containers as tight as workspaces, without any network.

    python3 -B -m unittest discover -v -s tests/environments

Needs Docker and skilld/base.
"""

import unittest

from environment_case import ENVIRONMENT, INDEX, EnvironmentCase
from hostile_packages import make_hostile_packages
from sample_packages import make_wheel


class PackagesOfTheWheelhouse(EnvironmentCase):
    """Uses one environment that took greeter from the wheelhouse and idna from the image."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        need = f"greeter>=1 --hash=sha256:{cls.greeter_hash}\nrequests\n"
        cls.result = cls.build(**{"requirements.txt": need})
        assert cls.result.code == 0, cls.result.lines
        cls.tree = cls.result.unpack(cls.root / "tree")

    def test_tar_begins_with_the_description_and_has_no_owners(self):
        entries = self.result.entries()
        self.assertEqual(entries[0].name, "environment.json")
        paths = [entry.name.split("/") for entry in entries[1:]]
        self.assertEqual(paths, sorted(paths))
        self.assertEqual({(entry.uid, entry.gid, entry.mtime) for entry in entries}, {(0, 0, 0)})
        self.assertEqual({entry.mode for entry in entries}, {0o644, 0o755})
        self.assertEqual({entry.name.split("/")[0] for entry in entries}, {"environment.json", "venv", "wheels"})
        names = [entry.name for entry in entries if entry.name.startswith("venv/bin/")]
        self.assertEqual(names, ["venv/bin/activate", "venv/bin/greet"])
        described = self.result.environment()
        greeter = {"name": "greeter", "version": "1.0", "hashes": [f"sha256:{self.greeter_hash}"]}
        self.assertEqual((described["version"], described["packages"]), (1, [greeter]))
        self.assertEqual(described["python_modules"], ["greeter"])
        self.assertLessEqual({"idna", "requests", "urllib3"}, {item["name"] for item in described["provided"]})

    def test_console_script_works_where_the_tree_is_mounted(self):
        self.assertEqual(self.use(self.tree, "greet; cd /tmp; sh -c greet"), [f"hello from {ENVIRONMENT}/venv"] * 2)

    def test_same_need_gives_the_same_bytes(self):
        need = f"greeter>=1 --hash=sha256:{self.greeter_hash}\nrequests\n"
        self.assertEqual(self.build(**{"requirements.txt": need}).tar, self.result.tar)

    def test_byte_code_is_used_instead_of_the_source(self):
        tree = self.result.unpack(self.root / "other-source")
        source = next(tree.glob("venv/lib/*/site-packages/greeter.py"))
        source.write_text("raise SystemExit('compiled again')\n")
        self.assertEqual(self.use(tree, "python -c 'import greeter; print(greeter.plug())'"), ["plugged in"])

    def test_uv_run_resolves_a_script_offline_from_both_sources(self):
        script = (
            "# /// script\n# dependencies = ['greeter>=1', 'requests']\n# ///\n"
            "import greeter, idna, requests, sys\nfrom importlib.metadata import entry_points\n"
            "print(greeter.__file__)\nprint(requests.__file__)\n"
            "print([point.load()() for point in entry_points(group='greeter.plugins')])\n"
        )
        lines = self.use(self.tree, f'cat > run.py <<"END"\n{script}END\nuv run run.py')
        self.assertRegex(lines[0], f"^{ENVIRONMENT}/venv/lib/python3[.0-9]*/site-packages/greeter.py$")
        self.assertRegex(lines[1], "^/usr/.*/dist-packages/requests/__init__.py$")
        self.assertEqual(lines[2], "['plugged in']")

    def test_pip_fills_a_private_environment_from_both_sources(self):
        lines = self.use(
            self.tree,
            "/usr/bin/python3 -m venv v\n"
            "v/bin/pip install -q --no-index --find-links $UV_FIND_LINKS greeter requests\n"
            "v/bin/python -c 'import greeter, requests; print(greeter.plug(), requests.__version__[0])'\nv/bin/greet\n",
        )
        self.assertEqual(lines, ["plugged in 2", "hello from /workspace/v"])

    def test_newer_version_of_a_private_environment_wins(self):
        newer = self.root / "newer"
        newer.mkdir()
        make_wheel(newer, "greeter", "2.0", {"greeter": "def plug():\n    return 'newer'\n"})
        lines = self.use(
            self.tree,
            "uv venv -q v\nexport UV_FIND_LINKS=/newer,$UV_FIND_LINKS\n"
            "uv pip install -q --python v/bin/python greeter requests\n"
            "v/bin/python -c 'import greeter, requests; print(greeter.plug())'\n"
            "python -c 'import greeter; print(greeter.plug())'\n",
            "--volume", f"{newer}:/newer:ro",
        )  # fmt: skip
        self.assertEqual(lines, ["newer", "plugged in"])


class PackagesOfTheImage(EnvironmentCase):
    def test_package_of_the_image_satisfies_a_need_without_install(self):
        result = self.built(**{"requirements.txt": "# comment\n\nidna>=3 ; python_version >= '3'\nPyYAML\n"})
        described = result.environment()
        self.assertEqual((described["packages"], described["python_modules"]), ([], []))
        self.assertEqual([item["name"] for item in described["provided"]], ["idna", "pyyaml"])
        tree = result.unpack(self.root / "provided")
        self.assertEqual(list(tree.glob("venv/lib/*/site-packages/*")), [])
        lines = self.use(tree, "python -c 'import idna, sys, yaml; print(sys.prefix)'")
        self.assertEqual(lines, [f"{ENVIRONMENT}/venv"])

    def test_newer_version_from_the_wheelhouse_beats_the_image(self):
        tree = self.built(**{"requirements.txt": "idna>=98\n"}).unpack(self.root / "idna")
        lines = self.use(
            tree,
            "python -c 'import idna; print(idna.ORIGIN)'\nuv venv -q v\n"
            "uv pip install -q --python v/bin/python pyyaml chardet idna\n"
            "v/bin/python -c 'import chardet, idna, yaml; print(idna.ORIGIN)'",
        )
        self.assertEqual(lines, ["environment", "environment"])

    def test_dependencies_of_the_image_packages_are_respected(self):
        self.refused("requests", "idna>=2.5,<4", **{"requirements.txt": "requests\nidna>=98\n"})

    def test_missing_packages_of_an_image_extra_are_reported(self):
        result = self.built(**{"requirements.txt": "requests[socks]\n"})
        self.assertIn("requests", [item["name"] for item in result.environment()["provided"]])
        warnings = [line for line in result.lines if line.startswith("warning: ")]
        self.assertEqual(len(warnings), 1, result.lines)
        self.assertIn("pysocks was not found", warnings[0])

    def test_packages_of_an_extra_of_an_image_package_are_installed(self):
        make_wheel(self.wheelhouse, "PySocks", "1.7.1", {"socks": ""})
        self.addCleanup((self.wheelhouse / "PySocks-1.7.1-py3-none-any.whl").unlink)
        result = self.built(**{"requirements.txt": "requests[socks]\n"})
        self.assertEqual([item["name"] for item in result.environment()["packages"]], ["pysocks"])
        self.assertNotIn("warning", "\n".join(result.lines))

    def test_packages_of_an_images_virtual_environment_are_used(self):
        install = "uv pip install -q --python v/bin/python --no-index --find-links /opt/skilld/wheelhouse idna"
        result = self.built(prologue=f"uv venv -q v && {install} &&", python="v/bin/python",
                            **{"requirements.txt": "idna\n"})  # fmt: skip
        described = result.environment()
        self.assertEqual([item["name"] for item in described["packages"]], [])
        self.assertEqual(described["provided"], [{"name": "idna", "version": "99.0"}])
        self.assertRegex(described["python"]["executable"], "^/usr/bin/python3")
        tree = result.unpack(self.root / "private")
        added = next(tree.glob("venv/lib/*/site-packages/*.pth")).read_text()
        self.assertRegex(added, "^/workspace/v/lib/python3[.0-9]*/site-packages\n$")

    def test_environment_of_nothing_has_no_python(self):
        self.assertIsNone(self.built().environment()["python"])


class RefusedNeeds(EnvironmentCase):
    def test_wrong_hash_is_named(self):
        self.refused("greeter==1.0", "hash", **{"requirements.txt": f"greeter --hash=sha256:{'0' * 64}\n"})

    def test_conflicting_pins_are_named(self):
        self.refused("strict", "greeter<1", "greeter==1.0", **{"requirements.txt": "strict\ngreeter==1.0\n"})

    def test_missing_package_is_named(self):
        self.refused("nonexistent-package", "wheelhouse", **{"requirements.txt": "nonexistent-package\n"})

    def test_source_distribution_needs_source_builds(self):
        self.refused("unbuilt==1.0", "source builds", **{"requirements.txt": "unbuilt\n"})
        result = self.built(source_builds=True, **{"requirements.txt": "unbuilt\n"})
        self.assertEqual(result.environment()["python_modules"], ["unbuilt"])

    def test_lines_that_are_no_requirements_by_name_are_refused(self):
        for line in ("--index-url=a", "greeter @ file:///etc/passwd", "greeter --hash=md5:0"):
            with self.subTest(line=line):
                self.refused(line.split()[0], "NAME", **{"requirements.txt": f"{line}\n"})

    def test_missing_tool_is_named(self):
        self.refused("no uv", prologue="PATH=/nowhere", **{"requirements.txt": "greeter\n"})

    def test_output_of_tools_is_bounded(self):
        tool = self.root / "noisy-uv"
        tool.write_text("#!/bin/sh\nseq 1 5000 >&2\nexit 2\n")
        tool.chmod(0o755)
        result = self.build("--volume", f"{tool}:/tools/uv:ro", prologue="PATH=/tools:$PATH",
                            **{"requirements.txt": "greeter\n"})  # fmt: skip
        self.assertEqual(result.code, 1)
        self.assertIn("5000", result.reason)
        self.assertLess(len(result.lines), 1010)
        self.assertLess(len(result.reason), 2000)


class OperatorsAuthorities(EnvironmentCase):
    """Builds whose operator names a file of certificate authorities."""

    def test_tools_trust_them_beside_those_of_the_image(self):
        tool, image = self.root / "curious-uv", self.root / "image.pem"
        tool.write_text(
            '#!/bin/sh\necho "$SSL_CERT_FILE $PIP_CERT $NODE_EXTRA_CA_CERTS" >&2\ncat "$SSL_CERT_FILE" >&2\nexit 2\n'
        )
        tool.chmod(0o755)
        image.write_text("of the image")
        result = self.build("--volume", f"{tool}:/tools/uv:ro", "--volume", f"{image}:/image.pem:ro",
                            "--env", "SSL_CERT_FILE=/image.pem", prologue="PATH=/tools:$PATH",
                            **{"requirements.txt": "greeter\n", "authorities.pem": "of the operator\n"})  # fmt: skip
        lines = [line.removeprefix("uv: ") for line in result.lines]
        place = "/workspace/work/environment/authorities.pem"
        self.assertIn(" ".join([place] * 3), lines)
        self.assertEqual(lines[lines.index("of the image") + 1], "of the operator")


class HostilePackages(EnvironmentCase):
    """Builds packages that attack their build; hostile_packages.py describes them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_hostile_packages(cls.wheelhouse)

    def test_code_that_python_runs_at_its_start_does_not_run(self):
        result = self.built(**{"requirements.txt": "hostile-start\n"})
        self.assertEqual({entry.name.split("/")[0] for entry in result.entries()}, {"environment.json", "venv", "wheels"})

    def test_package_that_fills_the_disk_is_named(self):
        self.refused("hostile-bomb==1.0", "skills.build_disk", **{"requirements.txt": "hostile-bomb\n"})

    def test_members_that_lead_out_of_a_wheel_are_left_out(self):
        result = self.built(**{"requirements.txt": "hostile-paths\nhostile-links\n"})
        names = {entry.name.rpartition("/")[2]: entry for entry in result.entries()}
        self.assertTrue({"CON", "nul.py", "null"} <= names.keys(), names)
        self.assertFalse({"climbed", "absolute"} & names.keys(), names)
        self.assertTrue(names["hostile_link"].isreg())


class PackagesOfAnIndex(EnvironmentCase):
    """Reaches an index only through the Unix socket of the proxy."""

    def test_wheel_of_an_index_comes_through_the_proxy(self):
        wheels = self.root / "index"
        wheels.mkdir()
        digest = make_wheel(wheels, "distant", "3.1", {"distant": "ORIGIN = 'index'"}, ["idna>=3"])
        wheel = next(wheels.iterdir())
        page = f'<a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a>'
        index, mounts = self.serve({
            "http://index.test/simple/distant/": page.encode(),
            f"http://index.test/files/{wheel.name}": wheel.read_bytes(),
        })  # fmt: skip
        result = self.built(*mounts, **INDEX, **{"requirements.txt": "distant\n"})
        described = result.environment()
        self.assertEqual(described["packages"], [{"name": "distant", "version": "3.1", "hashes": [f"sha256:{digest}"]}])
        self.assertEqual([item["name"] for item in described["provided"]], ["idna"])
        self.assertEqual({url.split("/")[2] for url in index.requested}, {"index.test"})
        absent = self.build(*mounts, **INDEX, **{"requirements.txt": "absent\n"})
        self.assertEqual(absent.code, 3, absent.lines)
        self.assertIn("absent", absent.reason)

    def test_package_of_the_wheelhouse_never_comes_from_the_index(self):
        wheels = self.root / "registered-by-a-stranger"
        wheels.mkdir()
        make_wheel(wheels, "greeter", "99.0", {"greeter": "ORIGIN = 'stranger'"})
        wheel = next(wheels.iterdir())
        index, mounts = self.serve({
            "http://index.test/simple/greeter/": f'<a href="/files/{wheel.name}">{wheel.name}</a>'.encode(),
            f"http://index.test/files/{wheel.name}": wheel.read_bytes(),
        })  # fmt: skip
        packages = self.built(*mounts, **INDEX, **{"requirements.txt": "greeter\n"}).environment()["packages"]
        self.assertIn(("greeter", "1.0"), [(item["name"], item["version"]) for item in packages])
        newer = self.build(*mounts, **INDEX, **{"requirements.txt": "greeter>=2\n"})
        self.assertEqual(newer.code, 3, newer.lines)
        self.assertNotIn(f"http://index.test/files/{wheel.name}", index.requested)

    def test_unreachable_index_is_no_fault_of_the_need(self):
        self.refused("index.test", code=1, **INDEX, **{"requirements.txt": "distant\n"})

    def test_needs_that_image_and_wheels_meet_ask_no_index(self):
        described = self.built(**INDEX, **{"requirements.txt": "greeter\nPyYAML\n"}).environment()
        self.assertEqual([item["name"] for item in described["packages"]], ["greeter"])
        self.assertEqual([item["name"] for item in described["provided"]], ["idna", "pyyaml"])
        index, mounts = self.serve({})
        again = self.built(*mounts, **INDEX, **{"requirements.txt": "greeter\nPyYAML\n"}).environment()
        self.assertEqual((again["packages"], index.requested), (described["packages"], []))

    def test_configuration_of_the_image_concerns_no_build(self):
        variables = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_DEFAULT_INDEX": "http://other.test/simple",
                     "PIP_INDEX_URL": "http://other.test/simple", "UV_CONSTRAINT": "/nowhere", "UV_REQUIRE_HASHES": "1"}
        options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        configured = self.root / "configured"
        configured.mkdir()
        (configured / "uv.toml").write_text('offline = true\nno-index = true\n')
        index, mounts = self.serve({})
        absent = self.build(*mounts, *options, "--volume", f"{configured}:/etc/uv:ro", **INDEX,
                            **{"requirements.txt": "absent\n"})  # fmt: skip
        self.assertEqual(absent.code, 3, absent.lines)
        self.assertEqual(set(index.requested), {"http://index.test/simple/absent/"})


if __name__ == "__main__":
    unittest.main()
