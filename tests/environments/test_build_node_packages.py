"""Builds environments of Node.js packages with the npm of an image, and a registry behind a Unix socket.

Needs Docker and an image with npm: skilld/office, or the one of SKILLD_TEST_NODE_IMAGE. Without it the tests are skipped.
"""

import base64
import json
import os
import subprocess
import unittest

from environment_case import SCRIPT, EnvironmentCase
from sample_packages import make_registry

NODE_IMAGE = os.environ.get("SKILLD_TEST_NODE_IMAGE", "skilld/office:latest")
URL = "http://index.test/npm"
PLACE = {"node_index_url": f"{URL}/", "proxy_socket": "/run/skilld/index.sock"}
SCRIPTS = {key: "touch ran && exit 1" for key in ("preinstall", "install", "postinstall", "prepare")}
PACKAGES = {
    ("plain", "1.0.0"): {},
    ("plain", "1.5.0"): {},
    ("plain", "2.0.0"): {},
    ("@scope/tool", "1.0.0"): {"dependencies": {"plain": "^1.0.0"}, "bin": {"tool": "index.js", "gone": "gone.js"}},
    ("scripted", "1.0.0"): {"scripts": SCRIPTS},
    ("binary", "1.0.0"): {"scripts": SCRIPTS, "optionalDependencies": {"binary-linux": "1", "foreign": "1"}},
    ("binary-linux", "1.0.0"): {},
    ("modern", "1.0.0"): {"engines": {"node": ">=99"}},
    ("old-plain", "1.0.0"): {"dependencies": {"plain": "1.0.0"}},
    ("peer", "1.0.0"): {"peerDependencies": {"plain": "^1.0.0"}},
    ("foreign", "1.0.0"): {"os": ["darwin"]},
}


def lock(root, registry, **packages):
    """Returns a package-lock.json of a root package: (name, version) by the place below node_modules, or an entry."""
    entries = {"": root}
    for place, item in packages.items():
        if isinstance(item, tuple):
            name, version = item
            document = json.loads(registry[f"{URL}/{name.replace('/', '%2f')}"])["versions"][version]
            item = {"version": version, "resolved": document["dist"]["tarball"], "integrity": document["dist"]["integrity"]}
        entries[place if "/" in place else f"node_modules/{place}"] = item
    return {**root, "lockfileVersion": 3, "requires": True, "packages": entries}


class NodeCase(EnvironmentCase):
    """Needs npm, which skilld/base does not have."""

    image = NODE_IMAGE

    @classmethod
    def setUpClass(cls):
        if subprocess.run(["docker", "image", "inspect", cls.image], capture_output=True).returncode != 0:
            reason = f"Node.js packages are not tested without {cls.image}: make image IMAGE=office"
            print(f"  {reason}")
            raise unittest.SkipTest(reason)
        super().setUpClass()
        cls.registry = make_registry(URL, PACKAGES)

    def setUp(self):
        self.index, self.mounts = self.serve(dict(self.registry))

    def install(
        self, *options, folders=("",), place=PLACE, has_added=False, inferred=(), prologue="", **files
    ):
        """Builds an environment of projects in these folders of a skill; `files` are those of node/0."""
        projects = [{"folder": folder, "has_added": has_added, "inferred": list(inferred)} for folder in folders]
        named = {name if name.startswith("node/") else f"node/0/{name}": text for name, text in files.items()}
        return self.build(*self.mounts, *options, prologue=prologue, node_projects=projects, **place, **named)

    def installed(self, *options, **settings):
        result = self.install(*options, **settings)
        self.assertEqual(result.code, 0, "\n".join(result.lines))
        return result

    def names(self, result, key="node_packages"):
        return [f"{item['name']} {item['version']}" for item in result.environment()[key]]

    def files(self, result):
        return {entry.name.partition("node/0/")[2] for entry in result.entries()}


class LockedPackages(NodeCase):
    def test_install_scripts_of_node_packages_do_not_run(self):
        root = {"name": "need", "version": "1.0.0", "dependencies": {"scripted": "^1.0.0"}, "scripts": SCRIPTS}
        files = {"package.json": root, "package-lock.json": lock(root, self.registry, scripted=("scripted", "1.0.0"))}
        result = self.installed(**files)
        self.assertEqual(self.index.requested, [f"{URL}/scripted/-/scripted-1.0.0.tgz"])
        self.assertEqual(self.names(result), ["scripted 1.0.0"])
        self.assertFalse([name for name in self.files(result) if name.endswith("ran")])
        self.assertEqual(
            result.environment()["warnings"],
            ["scripted has an install script, which was not run; it may lack its binary"],
        )
        tree = result.unpack(self.root / "node")
        self.assertEqual(self.use(tree, "node -p 'require(\"scripted\")'"), ["scripted 1.0.0"])

    def test_package_with_another_hash_is_named(self):
        root = {"dependencies": {"plain": "^1.0.0"}}
        locked = lock(root, self.registry, plain=("plain", "1.0.0"))
        locked["packages"]["node_modules/plain"]["integrity"] = "sha512-" + base64.b64encode(bytes(64)).decode()
        damaged = self.install(**{"package.json": root, "package-lock.json": locked})
        self.assertEqual(damaged.code, 3, damaged.lines)
        self.assertTrue(damaged.reason.startswith("package plain has another hash than package-lock.json says"))

    def test_lock_that_does_not_fit_names_the_packages(self):
        root = {"dependencies": {"plain": "^1.0.0", "peer": "1"}}
        locked = lock({"dependencies": {"plain": "^1.0.0"}}, self.registry, plain=("plain", "1.0.0"))
        result = self.install(**{"package.json": root, "package-lock.json": locked})
        self.assertEqual(result.code, 3, result.lines)
        self.assertIn("missing: peer@1.0.0 from lock file", result.reason)

    def test_lock_of_refused_packages_installs_the_others(self):
        # The daemon has taken the refused package out of package.json, and the lock file still has it.
        cloned = {"version": "1.0.0", "resolved": "git+ssh://git@example.com/cloned.git#0123456789012345678901234567890123456789"}
        linked = {"resolved": "../../etc", "link": True}
        root = {"dependencies": {"plain": "1", "cloned": "git+ssh://git@example.com/cloned.git", "linked": "file:../../etc"}}
        locked = lock(root, self.registry, plain=("plain", "1.0.0"), cloned=cloned, linked=linked, **{"../../etc": {}})
        result = self.installed(**{"package.json": {"dependencies": {"plain": "1"}}, "package-lock.json": locked})
        self.assertEqual(self.names(result), ["plain 1.0.0"])

    def test_lock_that_does_not_fit_is_a_warning_beside_added_packages(self):
        root = {"dependencies": {"plain": "^1.0.0"}}
        files = {"package.json": {"dependencies": {"plain": "^2.0.0", "modern": "*"}},
                 "package-lock.json": lock(root, self.registry, plain=("plain", "1.0.0"))}  # fmt: skip
        result = self.installed(has_added=True, **files)
        self.assertEqual(self.names(result), ["modern 1.0.0", "plain 2.0.0"])
        self.assertIn("package-lock.json does not fit package.json: plain is 2.0.0, not 1.0.0", result.environment()["warnings"])


class UnlockedPackages(NodeCase):
    def test_each_folder_has_its_own_packages(self):
        files = {
            "node/0/package.json": {"dependencies": {"plain": "1.0.0"}},
            "node/1/scripts/package.json": {"dependencies": {"plain": "^2.0.0"}, "devDependencies": {"@scope/tool": "*"}},
        }
        result = self.installed(folders=["", "scripts"], **files)
        self.assertEqual(result.environment()["node_projects"], 2)
        self.assertEqual(self.names(result), ["plain 1.0.0", "@scope/tool 1.0.0", "plain 1.5.0", "plain 2.0.0"])
        self.assertEqual(
            result.environment()["warnings"],
            [f"{name} has no package-lock.json: another build may install other versions"
             for name in ("package.json", "scripts/package.json")],
        )  # fmt: skip
        tree = result.unpack(self.root / "folders")
        place = "/opt/skilld/environments/sample/node/1/node_modules"
        self.assertEqual(self.use(tree, f"NODE_PATH={place} node -p 'require(\"plain\")'"), ["plain 2.0.0"])
        programs = [entry.name for entry in result.entries() if "/.bin/" in entry.name]
        self.assertEqual(programs, ["node/1/node_modules/.bin/tool"])

    def test_own_packages_are_copies_and_run_no_script(self):
        own = {"version": "1.0.0", "scripts": SCRIPTS, "dependencies": {"plain": "^2.0.0", "second": "*"}}
        result = self.installed(folders=["app"], **{
            "app/package.json": {"workspaces": ["packages/*"], "dependencies": {"plain": "1.0.0", "lib": "file:../lib"}},
            "app/packages/first/package.json": {"name": "first", "bin": "cli.js"} | own,
            "app/packages/first/cli.js": "#!/usr/bin/env node\nconsole.log(require('plain'), require('second'));\n",
            "app/packages/second/package.json": {"name": "second", "version": "1.0.0", "dependencies": {"first": "*"}},
            "app/packages/second/index.js": "module.exports = 'second';\n",
            "lib/package.json": {"name": "lib", "version": "1.0.0", "scripts": {"prepare": "touch ran"}},
            "lib/index.js": "module.exports = 'lib';\n",
        })  # fmt: skip
        self.assertFalse([name for name in self.files(result) if name.endswith("ran")])
        links = [(entry.name, entry.linkname) for entry in result.entries() if entry.issym()]
        self.assertEqual(links, [("node/0/node_modules/.bin/first", "../first/cli.js")])
        tree = result.unpack(self.root / "own")
        script = "node $NODE_PATH/.bin/first && node -p 'require(\"lib\") + require(\"plain\")'"
        self.assertEqual(self.use(tree, script), ["plain 2.0.0 second", "libplain 1.0.0"])

    def test_links_out_of_the_skill_are_refused(self):
        for wanted in ("file:/etc", "file:../..", "file:.", "file:./absent"):
            with self.subTest(wanted=wanted):
                result = self.install(**{"package.json": {"dependencies": {"outer": wanted}}})
                self.assertEqual(result.code, 3, result.lines)
                self.assertIn("package outer leads out of its folder", result.reason)

    def test_faults_of_a_need_are_one_sentence(self):
        for dependencies, reason in (
            ({"absent": "^1"}, "the index has no package absent@^1: correct its name or version in package.json"),
            ({"plain": "^9"}, "the index has no version of package plain@^9: choose one that exists in package.json"),
            ({"foreign": "1"}, "package foreign@1.0.0 is not for this system or processor: make it one of the "
                               "optionalDependencies"),
            ({"peer": "1", "plain": "2"}, "the packages of package.json do not fit together: found: plain@2.0.0; peer "
                                          'plain@"^1.0.0" from peer@1.0.0: choose versions that do'),
            ({"../x": "1"}, 'package.json: invalid package name "../x" of package "../x@1": name cannot start with a period; '
                            "name can only contain URL-friendly characters: correct it"),
            ({"x": "github:a/b"}, "a package of package.json comes from ssh://git@github.com/a/b.git: use packages of an "
                                  "index"),
        ):  # fmt: skip
            with self.subTest(dependencies=dependencies):
                result = self.install(**{"package.json": {"dependencies": dependencies}})
                self.assertEqual((result.code, result.reason), (3, reason), result.lines)

    def test_faults_of_the_index_are_no_faults_of_the_need(self):
        for status, words in ((403, "refuses package plain (403)"), (503, "index.test did not answer as it should (E503)")):
            with self.subTest(status=status):
                self.index.pages[f"{URL}/plain"] = status
                result = self.install(**{"package.json": {"dependencies": {"plain": "1"}}})
                self.assertEqual(result.code, 1, result.lines)
                self.assertIn(words, result.reason)

    def test_optional_package_of_another_system_is_left_out(self):
        need = {"dependencies": {"plain": "1"}, "optionalDependencies": {"foreign": "1", "absent": "1"}}
        self.assertEqual(self.names(self.installed(**{"package.json": need})), ["plain 1.5.0"])

    def test_package_whose_binary_is_a_package_is_no_warning(self):
        result = self.installed(**{"package.json": {"dependencies": {"binary": "1", "scripted": "1"}}})
        self.assertEqual(self.names(result), ["binary 1.0.0", "binary-linux 1.0.0", "scripted 1.0.0"])
        scripts = [text for text in result.environment()["warnings"] if "install script" in text]
        self.assertEqual(len(scripts), 1, scripts)

    def test_members_that_lead_out_of_a_package_are_left_out(self):
        paths = ["package/../../../../climbed", "/tmp/absolute", "package/C:\\drive", "package/inner/kept"]
        self.index.pages |= make_registry(URL, {("climbing", "1.0.0"): {}}, {path: "x" for path in paths})
        # The shell stays, and looks for what npm wrote when the build has ended.
        find = "find /workspace /tmp ! -path '*/climbing/*' '(' -name climbed -o -name absolute ')' >&2"
        prologue = f'find_escaped() {{ {find}; }}; trap find_escaped EXIT; exec() {{ "$@"; }};'
        result = self.installed(prologue=prologue, **{"package.json": {"dependencies": {"climbing": "1"}}})
        self.assertIn("node_modules/climbing/inner/kept", self.files(result))
        self.assertFalse([line for line in result.lines if line.endswith(("/climbed", "/absolute"))], result.lines)

    def test_engines_that_do_not_fit_are_named(self):
        need = {"dependencies": {"modern": "1"}, "engines": {"node": ">=98"}, "os": ["darwin"]}
        warnings = self.installed(**{"package.json": need}).environment()["warnings"]
        self.assertRegex(warnings[1], r"^package.json wants Node.js >=98, and the image has v\d+[.\d]+: it may fail$")
        self.assertRegex(warnings[2], r"^modern 1.0.0 wants Node.js >=99, and the image has v\d+[.\d]+: it may fail$")

    def test_configuration_of_image_and_skill_is_not_read(self):
        folder = self.root / "configured"
        folder.mkdir(exist_ok=True)
        hostile = "registry=http://other.test/\noffline=true\nignore-scripts=false\n@scope:registry=http://other.test/\n"
        (folder / "npmrc").write_text(hostile)
        options = ["--volume", f"{folder}/npmrc:/etc/npmrc:ro", "--env", "npm_config_registry=http://other.test/",
                   "--env", "NPM_CONFIG_OFFLINE=true", "--env", "NODE_ENV=production"]  # fmt: skip
        need = {"devDependencies": {"@scope/tool": "1", "scripted": "1"}, "publishConfig": {"registry": "http://other.test/"},
                "packageManager": "pnpm@9.0.0", "devEngines": {"packageManager": {"name": "pnpm"}}}  # fmt: skip
        result = self.installed(*options, **{
            "package.json": need, ".npmrc": hostile, ".yarnrc": "registry http://other.test/\n",
            "node_modules/plain/package.json": {"name": "plain", "version": "0.0.1"},
        })  # fmt: skip
        self.assertEqual(self.names(result), ["@scope/tool 1.0.0", "plain 1.5.0", "scripted 1.0.0"])
        self.assertTrue(all(url.startswith(URL) for url in self.index.requested), self.index.requested)


class PackagesOfTheImage(NodeCase):
    """Builds in an image whose global packages are plain 1.2.0 and vast 3.0.0."""

    def setUp(self):
        super().setUp()
        self.options = []
        for name, version in (("plain", "1.2.0"), ("vast", "3.0.0")):
            folder = self.root / "global" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text(json.dumps({"name": name, "version": version}))
            self.options += ["--volume", f"{folder}:/usr/local/lib/node_modules/{name}:ro"]

    def test_fitting_packages_of_the_image_need_no_index(self):
        need = {"dependencies": {"plain": "^1.1.0", "vast": "latest"}, "devDependencies": {"absent": "1"}}
        place = PLACE | {"node_index_url": ""}
        result = self.installed(*self.options, place=place, **{"package.json": need})
        self.assertEqual(self.names(result, "node_provided"), ["plain 1.2.0", "vast 3.0.0"])
        self.assertEqual((self.names(result), self.index.requested), ([], []))
        self.assertEqual(
            result.environment()["warnings"],
            ["package.json: no index is configured, so devDependencies are left out: absent"],
        )
        refused = self.install(*self.options, place=place, **{"package.json": {"dependencies": {"plain": "2", "other": "1"}}})
        self.assertEqual(refused.code, 3, refused.lines)
        self.assertIn("the image lacks other, plain, and no index is configured", refused.reason)

    def test_only_what_the_image_lacks_is_installed(self):
        need = {"dependencies": {"plain": "^1.1.0", "modern": "1"}}
        result = self.installed(*self.options, **{"package.json": need})
        self.assertEqual(self.names(result), ["modern 1.0.0"])
        self.assertEqual(self.names(result, "node_provided"), ["plain 1.2.0"])

    def test_package_that_would_hide_the_image_is_resolved_too(self):
        need = {"dependencies": {"plain": "^1.1.0", "old-plain": "1"}}
        result = self.installed(*self.options, **{"package.json": need})
        self.assertEqual(self.names(result), ["old-plain 1.0.0", "plain 1.0.0", "plain 1.5.0"])
        self.assertEqual(self.names(result, "node_provided"), [])
        tree = result.unpack(self.root / "hidden")
        self.assertEqual(self.use(tree, "node -p 'require(\"plain\")'"), ["plain 1.5.0"])

    def test_lock_file_decides_against_the_image(self):
        root = {"dependencies": {"plain": "^1.1.0"}}
        files = {"package.json": root, "package-lock.json": lock(root, self.registry, plain=("plain", "1.5.0"))}
        self.assertEqual(self.names(self.installed(*self.options, **files)), ["plain 1.5.0"])

    def test_locked_versions_of_the_image_need_no_index(self):
        root, place = {"dependencies": {"plain": "^1.1.0"}}, PLACE | {"node_index_url": ""}
        for version, code in (("1.2.0", 0), ("1.5.0", 3)):
            entry = {"version": version, "resolved": f"{URL}/plain/-/plain-{version}.tgz"}
            files = {"package.json": root, "package-lock.json": lock(root, self.registry, plain=entry)}
            result = self.install(*self.options, place=place, **files)
            self.assertEqual(result.code, code, result.lines)
            if code == 0:
                self.assertEqual((self.names(result), self.names(result, "node_provided")), ([], ["plain 1.2.0"]))
        self.assertIn("no index is configured for package-lock.json: use an image that has", result.reason)


class MessagesOfNpm(unittest.TestCase):
    """Sentences for messages of npm, without a container."""

    @classmethod
    def setUpClass(cls):
        cls.script = {"__name__": "script"}
        exec(compile(SCRIPT, "script", "exec"), cls.script)
        cls.script["report"] = lambda message: None

    def describe(self, *lines):
        project = self.script["NodeProject"].__new__(self.script["NodeProject"])
        project.file, project.lock_file, project.index_url = "package.json", "package-lock.json", f"{URL}/"
        return str(project.failure("\n".join(lines), {}))

    def test_messages_of_two_versions_of_npm_are_understood(self):
        for word in ("ERR!", "error"):
            absent = self.describe(
                f"npm {word} code E404", f"npm {word} 404 Not Found - GET {URL}/@a%2fb - Not found", f"npm {word} 404"
            )
            self.assertEqual(absent, "the index has no package @a/b: correct its name or version in package.json")
            hanging = self.describe(
                f"npm {word} code ERR_SOCKET_TIMEOUT", f"npm {word} network request to {URL}/a failed, reason: Socket timeout"
            )
            self.assertTrue(hanging.startswith("index.test did not answer as it should (ERR_SOCKET_TIMEOUT): "), hanging)

    def test_hostile_addresses_in_a_message_are_no_failure_of_the_program(self):
        network = self.describe("npm ERR! code ECONNRESET", "npm ERR! network request to http://[x/y failed")
        self.assertIn("did not answer as it should (ECONNRESET)", network)
        absent = self.describe("npm ERR! code E404", "npm ERR! 404 Not Found - GET http://[x/y")
        self.assertIn("of unknown name", absent)
        digit = self.describe("npm ERR! code EODD", "npm ERR! a digit of github.com is wrong")
        self.assertTrue(digit.startswith("npm failed: EODD: a digit"), digit)

    def test_unknown_messages_are_cut_to_their_first_line(self):
        text = self.describe("npm ERR! code EODD", "npm ERR! syscall x", "npm ERR!", f"npm ERR! {'first ' * 400}", "npm ERR! second")
        self.assertTrue(text.startswith("npm failed: EODD: first first"), text)
        self.assertNotIn("second", text)
        self.assertLess(len(text), 1000)

    def test_warnings_of_a_report_are_bounded(self):
        builder = self.script["EnvironmentBuilder"].__new__(self.script["EnvironmentBuilder"])
        builder.result = {"warnings": []}
        for number in range(40):
            builder.warn(f"{number} \n" + "x" * 500)
        warnings = builder.result["warnings"]
        self.assertEqual((len(warnings), warnings[-1]), (20, "further warnings are left out"))
        self.assertTrue(all(len(text) <= 300 and text.isprintable() for text in warnings))


if __name__ == "__main__":
    unittest.main()
