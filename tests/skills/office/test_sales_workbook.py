"""Runs the sample skill sales-workbook as its document says. Needs what the image skilld/office has."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openpyxl import load_workbook

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "skills/sales-workbook/scripts/sales_workbook.py"


class SalesWorkbook(unittest.TestCase):
    """One temporary workspace per test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def table(self, text):
        path = self.root / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def run_script(self, *args, code=0, path=None):
        env = os.environ | {"HOME": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        if path is not None:
            env["PATH"] = path
        done = subprocess.run(
            [sys.executable, SCRIPT, *map(str, args)], cwd=self.root, env=env, capture_output=True, text=True, timeout=600
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_summary_is_formulas_with_their_values(self):
        sales = REPOSITORY / "tests/data/sales.csv"
        shown = self.run_script("--by", "region", "--sum", "revenue", sales).stdout
        self.assertIn("West     1,590 rows      445,855.07   32.8%\n", shown)
        path = self.root / "out/sales.xlsx"
        formulas, values = load_workbook(path), load_workbook(path, data_only=True)
        self.assertIn("SUMPRODUCT(EXACT(Data!", formulas["Summary"]["C2"].value)
        self.assertEqual([cell.value for cell in values["Summary"]["A"]], ["region", "West", "North", "South", "East", "Total"])
        self.assertAlmostEqual(values["Summary"]["C6"].value, 1360052.95)
        self.assertEqual(values["Summary"]["B6"].value, values["Data"].max_row - 1)
        self.assertEqual(len(formulas["Summary"]._charts), 1)

    def test_texts_that_look_like_formulas_stay_texts(self):
        table = self.table("kind,amount,note\n=1+1,2,=2+2\n*,3,\nA,4,\na,n.a.,\n,1,\n")
        shown = self.run_script("--by", "kind", "--sum", "amount", "--out", "x/y.xlsx", table).stdout
        self.assertEqual(
            [line.split()[:2] for line in shown.splitlines()[:-1]],
            [["A", "1"], ["*", "1"], ["=1+1", "1"], ["(none)", "1"], ["a", "1"], ["Total", "5"]],
        )
        data = load_workbook(self.root / "x/y.xlsx")["Data"]
        self.assertEqual((data["A2"].value, data["A2"].data_type, data["C2"].value), ("=1+1", "s", "=2+2"))

    def test_errors_name_the_reason_and_write_nothing(self):
        good = ("--by", "a", "--sum", "b")
        for text, args, code, reason in [
            ("a,b\n1,2\n", ("--by", "c", "--sum", "b"), 2, "the columns are a, b"),
            ("a,b\n1,2\n", ("--by", "a", "--sum", "a"), 2, "the same column"),
            ("a,b\n", good, 4, "has no rows"),
            ("", good, 4, "is no table"),
            (b"a,b\n\xff,1\n", good, 4, "is no table"),
            ("a,b\n1,2,3\n", good, 4, "row 2 has 3 cells"),
        ]:
            with self.subTest(text=text, args=args):
                self.assertIn(reason, self.run_script(*args, self.table(text), code=code).stderr)
        self.assertIn("No such file", self.run_script(*good, "none.csv", code=3).stderr)
        self.assertIn("LibreOffice", self.run_script(*good, self.table("a,b\n1,2\n"), code=5, path="/none").stderr)
        self.assertFalse((self.root / "out").exists())


if __name__ == "__main__":
    unittest.main()
