"""Runs the build script on requirements that were inferred from a skill's text, and on Node.js packages that were added.

    python3 -B -m unittest discover -v -s tests/environments -p test_inferred_packages.py

Needs Docker and skilld/base.
"""

import unittest

from environment_case import EnvironmentCase
from sample_packages import make_wheel
from test_build_node_packages import NodeCase, lock


class InferredRequirements(EnvironmentCase):
    """Needs of which a part may be wrong."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_wheel(cls.wheelhouse, "letters", "1.0", {"letters": ""})
        make_wheel(cls.wheelhouse, "json", "1.0", {"json": ""})

    def build_inferred(self, stated, inferred):
        """Builds a need; `inferred` maps requirements to modules."""
        lines = "".join(f"{line}\n" for line in [*stated, *inferred])
        return self.build(**{"requirements.txt": lines}, inferred=inferred)

    def test_names_that_do_not_exist_are_left_out_and_named(self):
        inferred = {"letters": "", "made-up": "made_up", "strict": "strict", "invented": ""}
        result = self.build_inferred(["greeter"], inferred)
        self.assertEqual(result.code, 0, "\n".join(result.lines))
        described = result.environment()
        self.assertEqual([item["name"] for item in described["packages"]], ["greeter", "letters"])
        # `strict` exists, and does not fit to what is stated.
        warning = "left out: invented, made-up, strict (inferred from the skill's text and not installable)"
        self.assertEqual(described["warnings"], [warning])

    def test_one_wrong_name_among_many_costs_no_other(self):
        folder = self.root / "many"
        folder.mkdir()
        names = [f"many{number:02}" for number in range(60)]
        for name in names:
            make_wheel(folder, name, "1.0", {name: ""})
        mount = ("--volume", f"{folder}:/opt/skilld/many:ro")
        inferred = dict.fromkeys([*names[:50], "made-up", *names[50:]], "")
        lines = "".join(f"{line}\n" for line in inferred)
        described = self.built(
            *mount, **{"requirements.txt": lines}, inferred=inferred, wheelhouse="/opt/skilld/many"
        ).environment()
        self.assertEqual([item["name"] for item in described["packages"]], names)
        self.assertEqual(len(described["warnings"]), 1)

    def test_modules_of_the_image_need_no_package(self):
        result = self.build_inferred([], {"json": "json", "letters": "letters"})
        self.assertEqual(result.code, 0, "\n".join(result.lines))
        self.assertEqual([item["name"] for item in result.environment()["packages"]], ["letters"])

    def test_a_fault_of_what_is_stated_is_reported_as_such(self):
        result = self.build_inferred(["absent-package"], {"made-up": ""})
        self.assertEqual((result.code, result.tar), (3, b""))
        self.assertIn("absent-package", result.reason)
        self.assertNotIn("made-up", result.reason)

    def test_an_environment_of_nothing_has_the_note(self):
        result = self.built(note="left out: everything")
        described = result.environment()
        self.assertEqual((described["packages"], described["python"]), ([], None))
        self.assertEqual(described["warnings"], ["left out: everything"])


class AddedNodePackages(NodeCase):
    """Projects whose package.json has more than the skill states."""

    def test_added_packages_come_beside_those_of_the_lock(self):
        locked = lock({"dependencies": {"plain": "^1.0.0"}}, self.registry, plain=("plain", "1.0.0"))
        package = {"dependencies": {"plain": "^1.0.0", "@scope/tool": "*"}}
        result = self.installed(has_added=True, **{"package.json": package, "package-lock.json": locked})
        self.assertEqual(self.names(result), ["@scope/tool 1.0.0", "plain 1.0.0"])
        self.assertEqual(result.environment()["warnings"], [])

    def test_inferred_packages_that_do_not_exist_are_left_out_and_named(self):
        package = {"optionalDependencies": {"made-up": "*", "plain": "*", "of-the-skill": "*"}}
        result = self.installed(has_added=True, inferred=["made-up", "plain"], **{"package.json": package})
        self.assertEqual(self.names(result), ["plain 2.0.0"])
        warning = "left out: made-up (inferred from the skill's text and not installable)"
        self.assertEqual(result.environment()["warnings"], [warning])

    def test_a_project_without_packages_is_empty(self):
        result = self.installed(has_added=True, **{"package.json": {}})
        self.assertEqual((self.names(result), result.environment()["warnings"]), ([], []))


if __name__ == "__main__":
    unittest.main()
