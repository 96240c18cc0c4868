"""Runs the sample skills as a workspace does: in a folder with inputs/ and out/, by their documented command lines."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SKILLS = REPOSITORY / "skills"


class SkillCase(unittest.TestCase):
    """One temporary workspace per test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "inputs").mkdir()

    def input(self, name, content):
        data = content if isinstance(content, bytes) else content.encode()
        (self.root / "inputs" / name).write_bytes(data)
        return f"inputs/{name}"

    def run_script(self, skill, script, *args, code=0):
        path = SKILLS / skill / "scripts" / script
        command = [sys.executable, path] if script.endswith(".py") else [path]
        env = os.environ | {"OUTPUT_DIR": str(self.root / "out"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([*command, *map(str, args)], cwd=self.root, env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def out(self, name):
        return json.loads((self.root / "out" / name).read_text())

    def nothing_written(self):
        self.assertFalse((self.root / "out").exists())


class Documents(unittest.TestCase):
    def test_every_skill_has_front_matter_and_its_name(self):
        documents = sorted(SKILLS.rglob("SKILL.md"))
        self.assertEqual(len(documents), 18)
        for document in documents:
            with self.subTest(document=document):
                head = document.read_text("utf-8-sig").split("---\n")[1]
                folder = re.sub(r"-[12]$", "", document.parent.name)
                self.assertIn(f"name: {folder}\n", head)
                description = re.search(r"^description: (.+)$", head, re.M).group(1)
                self.assertLessEqual(len(description), 1024)
                self.assertIn("\nlicense: Apache-2.0\n", head)

    def test_scripts_of_the_larger_ones_can_be_run_by_name(self):
        for folder in ("csv-report", "python-math", "text-stats"):
            for script in (SKILLS / folder / "scripts").iterdir():
                self.assertTrue(os.access(script, os.X_OK), script)


class TextStats(SkillCase):
    def stats(self, *args, code=0):
        return self.run_script("text-stats", "text-stats.sh", *args, code=code)

    def test_summary_has_counts_and_top_words(self):
        path = self.input("a.txt", "The cat saw the dog.\n\nThe dog's bone, über THE hill")
        text = self.stats("--json", "--top", 2, path).stdout
        self.assertIn("words         11\n", text)
        self.assertRegex(text, r"\n +4  the\n")
        self.assertEqual(
            self.out("summary.json"),
            {
                "file": "inputs/a.txt", "bytes": 52, "lines": 3, "blank_lines": 1, "words": 11, "characters": 51,
                "longest_line": {"length": 29, "line": 3},
                "top_words": [{"word": "the", "count": 4}, {"word": "bone", "count": 1}],
            },
        )  # fmt: skip

    def test_json_is_written_only_on_request(self):
        self.stats(self.input("a.txt", "x\n"))
        self.nothing_written()

    def test_empty_file_has_zero_counts(self):
        self.stats("--json", self.input("a.txt", ""))
        summary = self.out("summary.json")
        self.assertEqual((summary["lines"], summary["words"], summary["top_words"]), (0, 0, []))

    def test_file_names_may_have_spaces_and_dashes(self):
        self.stats("--", self.input("-a b.txt", "one\n"))

    def test_long_input_is_not_cut_by_a_closed_pipe(self):
        words = "\n".join(f"w{number}" for number in range(50_000))
        self.assertIn("w10000", self.stats("--top", 3, "--min-length", 6, self.input("a.txt", words)).stdout)

    def test_errors_name_the_reason_and_write_nothing(self):
        for args, code, reason in [
            ([], 2, "no file given"),
            (["--top", "x", "a"], 2, "--top takes a number"),
            (["--top"], 2, "--top takes a number"),
            (["--bad", "a"], 2, "unknown option --bad"),
            (["a", "b"], 2, "one file at a time"),
            (["inputs/none"], 3, "there is no file inputs/none"),
            (["inputs"], 3, "inputs is not a file"),
            ([self.input("b", b"\x00\x01\x02\xff")], 4, "is not text"),
            ([self.input("u", "hello".encode("utf-16"))], 4, "utf-16le"),
        ]:
            with self.subTest(args=args):
                self.assertIn(reason, self.stats("--json", *args, code=code).stderr)
                self.nothing_written()


class PythonMath(SkillCase):
    def math(self, *args, code=0):
        return self.run_script("python-math", "python_math.py", *args, code=code)

    def test_commands_print_the_right_answers(self):
        for args, answer in [
            ("fib 0", "0"),
            ("fib 100", "354224848179261915075"),
            ("fib 5 --sequence", "0 1 1 2 3 5"),
            ("primes --below 30", "2 3 5 7 11 13 17 19 23 29"),
            ("primes --count 3 --from 1000", "1009 1013 1019"),
            ("primes --below 2", ""),
            ("is-prime 1000000007", "yes"),
            ("is-prime 3215031751", "no"),
            ("is-prime 1", "no"),
            ("factor 1", ""),
            ("factor 360", "2 2 2 3 3 5"),
            ("factor 1000036000099", "1000003 1000033"),
            ("factor 1018081", "1009 1009"),
        ]:
            with self.subTest(args=args):
                self.assertEqual(self.math(*args.split()).stdout.split(), answer.split())

    def test_primes_agree_with_trial_division(self):
        wanted = [n for n in range(2, 2000) if all(n % d for d in range(2, int(n**0.5) + 1))]
        found = self.math("primes", "--below", 2000).stdout.split()
        self.assertEqual(list(map(int, found)), wanted)

    def test_largest_fibonacci_number_is_printed_whole(self):
        self.assertEqual(len(self.math("fib", 100_000).stdout.strip()), 20_899)

    def test_json_has_the_factors(self):
        self.assertEqual(json.loads(self.math("--json", "factor", 12).stdout), {"n": 12, "factors": [2, 2, 3]})

    def test_limits_are_usage_errors(self):
        for args in (
            "fib -1",
            "fib 100001",
            "fib x",
            "fib 20000 --sequence",
            "primes",
            "factor 0",
            "primes --below 99999999",
        ):
            with self.subTest(args=args):
                self.assertIn("error", self.math(*args.split(), code=2).stderr)


class CsvReport(SkillCase):
    def csv(self, *args, code=0):
        return self.run_script("csv-report", "csv_report.py", *args, code=code)

    def columns(self, content, *args):
        self.csv(*args, self.input("t.csv", content))
        self.report = self.out("report.json")
        return {column["name"]: column for column in self.report["columns"]}

    def test_report_describes_the_demo_table(self):
        table = REPOSITORY / "tests" / "data" / "sales.csv"
        done = self.csv("--group-by", "region", "--sum", "revenue", table)
        report = self.out("report.json")
        self.assertEqual((report["rows"], len(report["columns"])), (5000, 11))
        types = [column["type"] for column in report["columns"]]
        self.assertEqual(types, "text date text text text integer number integer number boolean text".split())
        total = sum(entry["sums"]["revenue"] for entry in report["groups"][0]["values"])
        self.assertAlmostEqual(total, report["columns"][8]["sum"], places=4)
        self.assertIn("read 1,000 rows (", done.stderr)
        self.assertIn("5,000 rows, 11 columns", done.stdout)
        self.assertIn("\n| West | 1,590 | 445,855.07 |\n", (self.root / "out" / "report.md").read_text())

    def test_number_columns_get_types_and_statistics(self):
        c = self.columns('a,b,c\n1,1.5,1\n2,-2,007\n3,1e2,3\n4,"1,000",4\n')
        self.assertEqual([c[name]["type"] for name in "abc"], ["integer", "number", "text"])
        self.assertEqual([c["a"][key] for key in ("min", "max", "mean", "median", "sum")], [1, 4, 2.5, 2.5, 10])
        self.assertEqual([c["b"][key] for key in ("min", "max")], [-2, 1000])

    def test_large_numbers_stay_exact_or_are_text(self):
        c = self.columns(f"a,b\n9223372036854775807,1e999\n9223372036854775806,{'9' * 400}\n")
        self.assertEqual(c["a"]["max"], 9223372036854775807)
        self.assertEqual(c["b"]["type"], "text")

    def test_a_few_cells_of_another_type_are_counted_and_left_out(self):
        c = self.columns("a\n" + "5\n" * 39 + "soon\n")
        self.assertEqual((c["a"]["type"], c["a"]["unlike_type"], c["a"]["mean"]), ("integer", 1, 5))
        self.assertEqual(self.report["notes"], ["a: 1 of 40 cells are not of type integer"])

    def test_byte_order_mark_quotes_and_line_ends_are_understood(self):
        c = self.columns('\ufeffname,note\r\n"Smith, J.","said ""hi""\r\ntwice"\r\n\r\nx,y\r\n')
        self.assertEqual(self.report["rows"], 2)
        self.assertEqual(c["name"]["top"][0]["value"], "Smith, J.")
        self.assertEqual(c["note"]["top"][0]["value"], 'said "hi"\r\ntwice')

    def test_utf_16_with_a_mark_is_decoded(self):
        self.assertIn("ä", self.columns("ä\tb\n1\t2\n".encode("utf-16")))

    def test_delimiters_are_found(self):
        for character in ",;\t|":
            with self.subTest(character=character):
                c = self.columns(
                    f"a{character}b\n1,5{character}x\n2,5{character}y\n" if character != "," else "a,b\n1,x\n"
                )
                self.assertEqual(list(c), ["a", "b"])
                self.assertEqual(self.report["delimiter"], character)

    def test_missing_cells_are_counted(self):
        c = self.columns("a,b\n,NA\nnull,\n1,n/a\n")
        self.assertEqual((c["a"]["missing"], c["a"]["type"]), (2, "integer"))
        self.assertEqual((c["b"]["missing"], c["b"]["type"]), (3, "empty"))

    def test_ragged_rows_are_noted_or_refused(self):
        content = "a,b\n1\n1,2,3\n1,2\n"
        c = self.columns(content)
        self.assertEqual(self.report["ragged_rows"], {"short": 1, "long": 1, "lines": [2, 3]})
        self.assertEqual(c["b"]["missing"], 1)
        self.assertIn("line 2: 1 cells where the first row has 2", self.csv("--strict", "inputs/t.csv", code=4).stderr)

    def test_header_names_are_completed_and_unique(self):
        self.assertEqual(list(self.columns("a,,a,a\n1,2,3,4\n")), ["a", "column 2", "a (2)", "a (3)"])
        self.assertEqual(list(self.columns("1,2\n3,4\n", "--no-header")), ["column 1", "column 2"])
        self.assertEqual(self.report["rows"], 2)

    def test_header_without_rows_is_noted(self):
        self.columns("a,b\n")
        self.assertEqual(self.report["notes"], ["there is a header but no row"])

    def test_many_different_values_are_bounded(self):
        c = self.columns("a\n" + "".join(f"v{number}\n" for number in range(12_000)))
        self.assertEqual(c["a"]["distinct"], 10_000)
        self.assertIn("only the first 10000 were counted", self.report["notes"][0])

    def test_many_numbers_are_sampled_and_said_so(self):
        c = self.columns("a\n" + "".join(f"{number}\n" for number in range(150_000)))
        self.assertEqual((c["a"]["min"], c["a"]["max"], c["a"]["count"]), (0, 149_999, 150_000))
        self.assertAlmostEqual(c["a"]["median"], 75_000, delta=10)
        self.assertIn("a: the median is estimated from 75000 of 150000 numbers", self.report["notes"])

    def test_markdown_cells_can_not_break_the_table(self):
        self.columns("a\n" + 'x | <b> "y"\n' * 4, "--delimiter", "tab")
        self.assertIn('| x \\| &lt;b> "y" | 4 |', (self.root / "out" / "report.md").read_text())

    def test_errors_name_the_reason_and_write_nothing(self):
        good = self.input("good.csv", "a,b\n1,2\n")
        for args, code, reason in [
            ([], 2, "required: FILE"),
            ([good, "--delimiter", "xx"], 2, "takes one of comma"),
            ([good, "--group-by", "z"], 2, "there is no column 'z'; the columns are: a, b"),
            ([good, "--sum", "a"], 2, "--sum needs --group-by"),
            ([good, "--encoding", "klingon"], 2, "unknown encoding: klingon"),
            (["inputs/none"], 3, "No such file"),
            (["inputs"], 3, "Is a directory"),
            ([self.input("empty", "")], 4, "has no rows"),
            ([self.input("quote", 'a,b\n1,"2\n')], 4, "line 2: unexpected end of data"),
            ([self.input("latin", "a,b\n1,é\n".encode("latin-1"))], 4, "try --encoding latin-1"),
            ([self.input("binary", b"PK\x03\x04\x00\x00")], 4, "binary"),
            ([self.input("huge", "a\n" + "x" * (1 << 21))], 4, "field larger than field limit"),
        ]:
            with self.subTest(args=args):
                self.assertIn(reason, self.csv(*args, code=code).stderr)
                self.nothing_written()


if __name__ == "__main__":
    unittest.main()
