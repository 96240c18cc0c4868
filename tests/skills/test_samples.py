"""Runs the smaller sample skills, one per shape that skills come in, as their documents say."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKILLS = Path(__file__).resolve().parents[2] / "skills"


class SampleCase(unittest.TestCase):
    """One temporary workspace per test; `out` is its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.out = self.root / "out"

    def file(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def run_in(self, skill, *command, code=0, stdin=""):
        env = os.environ | {"OUTPUT_DIR": str(self.out), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*map(str, command)], cwd=SKILLS / skill, env=env, input=stdin, capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done


class UnitConvert(SampleCase):
    def convert(self, *args, code=0):
        return self.run_in("unit-convert", sys.executable, "scripts/convert.py", *args, code=code)

    def test_conversions_are_exact(self):
        for value, source, target, result in [
            ("0.1", "km", "m", "100"), ("1", "mi", "km", "1.609344"), ("1", "GiB", "MiB", "1024"),
            ("-40", "c", "f", "-40"), ("212", "f", "c", "100"), ("0", "k", "c", "-273.15"), ("1e3", "g", "kg", "1"),
            ("2", "week", "d", "14"), ("1", "lb", "g", "453.59237"),
        ]:  # fmt: skip
            with self.subTest(source=source, target=target):
                shown = json.loads(self.convert("--from", source, "--to", target, "--", value).stdout)
                self.assertEqual(shown["results"], [{"value": str(value).replace("1e3", "1000"), "result": result}])

    def test_flags_change_the_output(self):
        self.assertEqual(self.convert("--from", "h", "--to", "min", "--quiet", 1, 2).stdout, "60\n120\n")
        self.assertEqual(self.convert("--from", "mi", "--to", "km", "--digits", 2, "--quiet", 1).stdout, "1.61\n")
        self.assertIn("temperature", json.loads(self.convert("--list").stdout))

    def test_errors_name_the_reason(self):
        for args, code, reason in [
            ([], 2, "give --from, --to and a value"),
            (["--from", "m", "--to", "km", "x"], 2, "not a number"),
            (["--from", "m", "--to", "km", "1e999"], 2, "not a number"),
            (["--from", "kg", "--to", "km", "1"], 4, "unit of mass"),
            (["--from", "gib", "--to", "B", "1"], 3, "did you mean GiB"),
        ]:
            with self.subTest(args=args):
                self.assertIn(reason, self.convert(*args, code=code).stderr)


class DocCheck(SampleCase):
    def check(self, *args, code=0):
        return self.run_in("doc-check", sys.executable, "-m", "scripts.check", *args, code=code)

    def test_findings_have_line_and_code(self):
        self.file("docs/other.md", "# There\n## A b!\n")
        text = "# Top\n### Too deep\n[x](none.md) [y](other.md#there) [z](other.md#nowhere)\n# Top\n[self](#too-deep)\n"
        text += "```\n[code](gone.md)\n```\n`[code](gone.md)` [web](https://example.com/x) ![img](other.md)\n"
        path = self.file("docs/a.md", text)
        found = json.loads(self.check("--json", self.root / "docs", code=1).stdout)
        self.assertEqual(
            [(finding["line"], finding["code"]) for finding in found],
            [(2, "level"), (3, "anchor"), (3, "link"), (4, "double")],
        )
        self.assertIn(f"{path}:3: link none.md does not exist\n", self.check(path, code=1).stdout)

    def test_good_documents_have_no_findings(self):
        self.assertEqual(self.check(self.file("a.md", "# One\n## Two\n[up](#one)\n")).stdout, "")
        self.check(self.root / "none.md", code=2)

    def test_our_own_documents_are_fine(self):
        self.check(SKILLS)


class JsonShape(SampleCase):
    def shape(self, *args, code=0):
        return self.run_in("json-shape", "bash", "scripts/json-shape.sh", *args, code=code)

    def test_shape_lists_paths_counts_and_types(self):
        path = self.file("a.jsonl", '{"id":1,"tags":["a","b"]}\n{"id":"x","tags":[],"more":{"k":null}}\n')
        lines = [line.split() for line in self.shape(path).stdout.splitlines()]
        self.assertEqual(
            lines,
            [["path", "count", "types"], [".", "2", "object"], [".id", "2", "number|string"], [".more", "1", "object"],
             [".more.k", "1", "null"], [".tags", "2", "array"], [".tags[]", "2", "string"]],
        )  # fmt: skip
        self.assertIn('"a"', self.shape("--examples", path).stdout)

    def test_errors_have_their_exit_codes(self):
        self.shape(code=2)
        self.shape("none.json", code=3)
        self.shape(self.file("bad.json", "{"), code=4)


class HeadingOutline(SampleCase):
    def outline(self, *args, code=0):
        return self.run_in("heading-outline", "node", "scripts/outline.mjs", *args, code=code)

    def test_outline_nests_headings(self):
        path = self.file("a.md", "\ufeff# One\r\n## Two!\r\n```\r\n# code\r\n```\r\n### Three\r\n## Two!\r\n")
        self.assertEqual(
            self.outline(path).stdout, "- [One](#one)\n  - [Two!](#two)\n    - [Three](#three)\n  - [Two!](#two-1)\n"
        )
        tree = json.loads(self.outline("--json", "--depth", 2, path).stdout)
        self.assertEqual([child["line"] for child in tree[0]["children"]], [2, 7])
        self.assertEqual(self.outline(self.file("empty.md", "")).stdout, "")

    def test_errors_have_their_exit_codes(self):
        self.outline(code=2)
        self.outline("--depth", 9, "x", code=2)
        self.outline("none.md", code=3)


class ImageInfo(SampleCase):
    def info(self, *args, code=0):
        done = self.run_in("image-info", sys.executable, "scripts/image_info.py", *args, code=code)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_formats_and_sizes_are_recognised(self):
        gif = self.file("a.gif", b"GIF89a\x03\x00\x02\x00\xf7\x00\x00;")
        jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08\x00\x05\x00\x07\x01\x01\x11\x00\xff\xd9"
        jpeg = self.file("a.jpg", jpeg)
        shown = self.info("--fits", "icon", "assets/sample.png", gif, jpeg)
        sizes = [(one["format"], one["width"], one["height"], one["bits"], one["complete"], one["fits"]) for one in shown]
        self.assertEqual(
            sizes, [("png", 16, 16, 8, True, True), ("gif", 3, 2, 8, True, False), ("jpeg", 7, 5, 8, True, False)]
        )

    def test_cut_and_strange_files_are_reported(self):
        sample = (SKILLS / "image-info/assets/sample.png").read_bytes()
        self.assertFalse(self.info(self.file("cut.png", sample[:60]))[0]["complete"])
        for name, data in [("head.png", sample[:18]), ("text", b"hello"), ("empty", b""), ("x.jpg", b"\xff\xd8\xff\xe0")]:
            self.assertIn("error", self.info(self.file(name, data), code=4)[0], name)


class LetterTemplate(SampleCase):
    def test_two_versions_write_two_formats(self):
        words = ["--to", "A <b> & C", "--subject", "$x", "--from", "Me", "--date", "today"]
        for version, name, to in [(1, "letter.txt", "Dear A <b> & C,"), (2, "letter.html", "Dear A &lt;b&gt; &amp; C,")]:
            skill = f"letter-template-{version}"
            self.run_in(skill, sys.executable, "scripts/letter.py", *words, stdin="Hello\n$to\n")
            text = (self.out / name).read_text()
            self.assertIn(to, text)
            self.assertIn("Hello\n$to", text)
            card = json.loads((SKILLS / skill / "skill-card.json").read_text())
            self.assertEqual((card["id"], card["version"]), ("letter-template", f"{version}.0.0"))
            for file in card["files"]:
                self.assertTrue((SKILLS / skill / file).is_file(), file)

    def test_an_empty_body_is_an_error(self):
        self.run_in("letter-template-1", sys.executable, "scripts/letter.py", "--to", "a", "--subject", "b", code=2)


class FlashCards(SampleCase):
    def quiz(self, *args, stdin="", code=0):
        return self.run_in("flash-cards", sys.executable, "scripts/quiz.py", *args, stdin=stdin, code=code)

    def test_game_repeats_wrong_cards_and_counts_answers(self):
        text = self.quiz("--count", 2, stdin="paris\nOsaka\nTokyo\n").stdout
        self.assertEqual(
            text, "1/2 France? right\n2/2 Japan? it is Tokyo\n1/1 Japan? right\nscore 2/3\n"
        )

    def test_it_never_waits_for_ever(self):
        self.assertEqual(self.quiz().stdout, "1/5 France? \nscore 0/0\n")
        self.assertTrue(self.quiz(stdin="?\nquit\n").stdout.endswith("score 0/1\n"))

    def test_decks_are_read_or_refused(self):
        self.assertIn("score 1/1", self.quiz("--deck", self.file("d", "\ufeffa\tÄ|b\r\n"), stdin="a\n").stdout)
        for bad in ("", "no tab\n", "a\t\n"):
            self.quiz("--deck", self.file("bad", bad), code=2)


class LineEnds(SampleCase):
    def ends(self, *args, code=0):
        # As staging leaves it: a shell script runs as if it had LF.
        script = (SKILLS / "line-ends/scripts/line-ends.sh").read_bytes()
        self.assertTrue(script.startswith(b"\xef\xbb\xbf#!") and b"\r\n" in script)
        script = script.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
        return self.run_in("line-ends", "bash", self.file("line-ends.sh", script), *args, code=code)

    def test_kinds_of_line_ends_are_named(self):
        for content, kind, code in [
            (b"a\nb\n", "lf", 0), (b"a\r\nb\r\n", "crlf", 1), (b"a\r\nb\n", "mixed", 1), (b"", "none", 0),
            (b"abc", "none", 0), (b"\xef\xbb\xbfa\n", "lf bom", 1), (b"a \nb\t\n", "lf blanks", 1),
        ]:  # fmt: skip
            with self.subTest(content=content):
                path = self.file("x", content)
                self.assertEqual(self.ends(path, code=code).stdout, f"{path} {kind}\n")

    def test_fix_writes_a_copy(self):
        path = self.file("in.txt", b"\xef\xbb\xbfa \r\nb\r\nc")
        self.ends("--fix", path)
        self.assertEqual((self.out / "in.txt").read_bytes(), b"a\nb\nc")
        self.assertTrue(Path(path).read_bytes().startswith(b"\xef"))

    def test_errors_have_their_exit_codes(self):
        self.ends(code=2)
        self.ends("none", code=3)

    def test_its_files_have_windows_line_ends_and_its_script_a_mark(self):
        document = (SKILLS / "line-ends/SKILL.md").read_bytes()
        script = (SKILLS / "line-ends/scripts/line-ends.sh").read_bytes()
        self.assertTrue(document.startswith(b"---\r\n"))
        self.assertTrue(script.startswith(b"\xef\xbb\xbf#!"))
        for text in (document, script):
            self.assertNotIn(b"\n", text.replace(b"\r\n", b""))


class ReleaseKit(SampleCase):
    def next(self, *args, stdin="", code=0):
        return self.run_in("release-kit/next-version", sys.executable, "scripts/next_version.py", *args, stdin=stdin, code=code)

    def test_changes_decide_the_next_version(self):
        for current, changes, expected in [
            ("1.2.3", "fix: a\ndocs: b", "1.2.4"),
            ("1.2.3", "fix: a\nfeat(x): b", "1.3.0"),
            ("v1.2.3", "feat!: a\nfeat: b", "2.0.0"),
            ("1.2.3", "words\nfix(a)!: b", "2.0.0"),
            ("1.2.3", "fix: a, BREAKING CHANGE", "2.0.0"),
            ("0.4.9", "feat!: a", "0.5.0"),
            ("0.4.9", "features: a", "0.4.10"),
        ]:
            with self.subTest(changes=changes):
                self.assertEqual(self.next(current, stdin=changes).stdout, expected + "\n")

    def test_errors_have_their_exit_codes(self):
        self.next("1.2", stdin="fix: a", code=2)
        self.next("1.2.3", code=3)


class Shapes(unittest.TestCase):
    def test_one_sample_is_a_lone_document_and_one_lists_tools(self):
        self.assertEqual([path.name for path in (SKILLS / "incident-report").rglob("*")], ["SKILL.md"])
        text = (SKILLS / "trip-planner/SKILL.md").read_text()
        tools = re.search(r"^Tools:\n((?:- .*\n)+)", text, re.M).group(1)
        names = [line.split("#")[0].removeprefix("- ").strip() for line in tools.splitlines()]
        self.assertEqual(names, ["get_forecast", "search_places", "travel_time"])


if __name__ == "__main__":
    unittest.main()
