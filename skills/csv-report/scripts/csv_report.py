#!/usr/bin/env python3
"""Profiles a CSV file into report.json and report.md. See ../SKILL.md."""

import argparse
import codecs
import csv
import datetime
import io
import json
import os
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

CELL_BYTES_MAX = 1 << 20
COLUMNS_MAX = 2_000
SAMPLE_MAX = 100_000
DISTINCT_MAX = 10_000
VALUE_LENGTH_MAX = 80
# Beyond these, sums could leave what a float holds; such cells are text.
DIGITS_MAX = 300
NUMBER_MAX = 1e300
# A column has a type when this part of its cells has it: one "n.a." should not make a number column text.
TYPE_SHARE = 0.95
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
MISSING = {"", "na", "n/a", "null", "none", "nan", "-"}
BOOLEANS = {"true", "false", "yes", "no"}
INTEGER = re.compile(r"[+-]?(0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)")
NUMBER = re.compile(r"[+-]?(0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)?(\.\d+)?([eE][+-]?\d{1,3})?")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?)?")


class Fault(Exception):
    """What the caller is told, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def type_of(cell: str) -> str:
    """The narrowest type of one cell that is not missing."""
    if cell[0] in "+-.0123456789":
        if INTEGER.fullmatch(cell) and len(cell) <= DIGITS_MAX:
            return "integer"
        if NUMBER.fullmatch(cell) and any(map(str.isdigit, cell)) and abs(to_number(cell)) < NUMBER_MAX:
            return "number"
        if DATE.fullmatch(cell) and is_date(cell[:10]):
            return "date"
    return "boolean" if cell.lower() in BOOLEANS else "text"


def is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


class Sample:
    """Every number, or an even sample once there are too many: when the list is full, every second one goes."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.step = 1
        self.seen = 0

    def add(self, value: float) -> None:
        if self.seen % self.step == 0:
            self.values.append(value)
            if len(self.values) > SAMPLE_MAX:
                self.values = self.values[::2]
                self.step *= 2
        self.seen += 1


class Tally:
    """Counts of values; new values beyond the limit are only counted together."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.beyond = 0

    def add(self, value: str) -> bool:
        if value in self.counts or len(self.counts) < DISTINCT_MAX:
            self.counts[value] += 1
            return True
        self.beyond += 1
        return False

    def top(self, n: int) -> list[tuple[str, int]]:
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:n]


class Column:
    """What is known of one column after the rows so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.missing = 0
        self.types: Counter[str] = Counter()
        self.tally = Tally()
        self.sample = Sample()
        self.sum: float = 0
        # Whole numbers stay whole: an id of 19 digits must not be rounded.
        self.number_range: tuple[float, float] | None = None
        self.date_range: tuple[str, str] | None = None
        self.length_range: tuple[int, int] | None = None

    def add(self, cell: str) -> None:
        if cell.lower() in MISSING:
            self.missing += 1
            return
        kind = type_of(cell)
        self.types[kind] += 1
        self.tally.add(cell[:VALUE_LENGTH_MAX])
        self.length_range = widened(self.length_range, len(cell))
        if kind in ("integer", "number"):
            value = int(cell.replace(",", "")) if kind == "integer" else to_number(cell)
            self.sum += value
            self.sample.add(value)
            self.number_range = widened(self.number_range, value)
        elif kind == "date":
            self.date_range = widened(self.date_range, cell)

    def type(self) -> str:
        count = self.types.total()
        if count == 0:
            return "empty"
        if self.types["integer"] + self.types["number"] >= TYPE_SHARE * count:
            return "number" if self.types["number"] else "integer"
        kind, most = self.types.most_common(1)[0]
        return kind if most >= TYPE_SHARE * count else "text"

    def report(self, top: int) -> dict:
        kind, count = self.type(), self.types.total()
        fits = {"number": ("number", "integer"), "text": tuple(self.types), "empty": ()}.get(kind, (kind,))
        unlike = count - sum(self.types[name] for name in fits)
        result = {"name": self.name, "type": kind, "count": count, "missing": self.missing}
        result["distinct"] = len(self.tally.counts)
        if kind in ("integer", "number"):
            low, high = self.number_range
            result |= {
                "min": low,
                "max": high,
                "mean": rounded(self.sum / self.sample.seen),
                "median": rounded(statistics.median(self.sample.values)),
                "sum": rounded(self.sum),
            }
        elif kind == "date":
            result["min"], result["max"] = self.date_range
        elif kind == "text":
            result["min_length"], result["max_length"] = self.length_range
        result["top"] = [{"value": value, "count": number} for value, number in self.tally.top(top)]
        result["unlike_type"] = unlike
        result["notes"] = self.notes(kind, unlike, count)
        return result

    def notes(self, kind: str, unlike: int, count: int) -> list[str]:
        notes = []
        if unlike:
            notes.append(f"{unlike} of {count} cells are not of type {kind}")
        if self.tally.beyond:
            notes.append(f"more than {DISTINCT_MAX} different values: only the first {DISTINCT_MAX} were counted")
        if kind in ("integer", "number") and self.sample.step > 1:
            notes.append(f"the median is estimated from {len(self.sample.values)} of {self.sample.seen} numbers")
        return notes


def widened(span, value):
    """The range that also holds value."""
    return (value, value) if span is None else (min(span[0], value), max(span[1], value))


def to_number(cell: str) -> float:
    return float(cell.replace(",", ""))


def rounded(value: float) -> float:
    """Six significant decimals, so that 0.1 + 0.2 does not look like a finding."""
    return round(value, 6)


class Group:
    """Rows and sums per value of one column."""

    def __init__(self, by: int, sums: list[int]) -> None:
        self.by = by
        self.sums = sums
        self.tally = Tally()
        self.totals: dict[str, list[float]] = {}

    def add(self, row: list[str]) -> None:
        value = row[self.by][:VALUE_LENGTH_MAX] or "(missing)"
        if not self.tally.add(value):
            return
        totals = self.totals.setdefault(value, [0.0] * len(self.sums))
        for place, column in enumerate(self.sums):
            cell = row[column]
            if cell.lower() not in MISSING and type_of(cell) in ("integer", "number"):
                totals[place] += to_number(cell)

    def report(self, names: list[str]) -> dict:
        sums = [names[column] for column in self.sums]
        values = []
        for value, rows in self.tally.top(DISTINCT_MAX):
            totals = map(rounded, self.totals[value])
            values.append({"value": value, "rows": rows, "sums": dict(zip(sums, totals, strict=True))})
        if sums:
            values.sort(key=lambda entry: -entry["sums"][sums[0]])
        return {"by": names[self.by], "sums": sums, "rows_not_grouped": self.tally.beyond, "values": values}


class Table:
    """Reads the rows, and keeps what is odd about them."""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        self.path = path
        self.strict = args.strict
        try:
            self.bytes = path.stat().st_size
            self.raw = path.open("rb")
        except OSError as error:
            raise Fault(3, f"can't read {path}: {error.strerror}") from error
        head = self.raw.peek(1 << 16)[: 1 << 16]
        self.encoding = args.encoding or encoding_of(head)
        self.delimiter = args.delimiter or delimiter_of(head, self.encoding)
        text = io.TextIOWrapper(self.raw, encoding=self.encoding, newline="")
        csv.field_size_limit(CELL_BYTES_MAX)
        self.reader = csv.reader(text, delimiter=self.delimiter, strict=True)
        self.short = self.long = 0
        self.ragged_lines: list[int] = []
        self.first: list[str] | None = None
        self.names = self.header(args.no_header)

    def header(self, no_header: bool) -> list[str]:
        first = next(self.lines(), None)
        if first is None:
            raise Fault(4, f"{self.path} has no rows")
        if len(first) > COLUMNS_MAX:
            raise Fault(4, f"{self.path} has {len(first)} columns; at most {COLUMNS_MAX} are reported")
        if no_header:
            self.first = first
            return [f"column {place}" for place in range(1, len(first) + 1)]
        names: list[str] = []
        for place, name in enumerate(first, 1):
            wanted = name = name.strip() or f"column {place}"
            again = 2
            while name in names:
                name, again = f"{wanted} ({again})", again + 1
            names.append(name)
        return names

    def lines(self):
        """Rows as written, empty lines left out; faults of the file become ours."""
        try:
            for row in self.reader:
                if row:
                    yield row
        except csv.Error as error:
            raise Fault(4, f"{self.path}, line {self.reader.line_num}: {error}") from error
        except UnicodeError as error:
            where = f"{self.path}, after line {self.reader.line_num}"
            raise Fault(4, f"{where}: not {self.encoding} ({error}); try --encoding latin-1") from error
        except LookupError as error:
            raise Fault(2, str(error)) from error

    def rows(self):
        """Rows, stripped and as wide as the header."""
        width = len(self.names)
        if self.first is not None:
            yield [cell.strip() for cell in self.first]
        for row in self.lines():
            if len(row) != width:
                self.ragged(len(row), width)
                row = (row + [""] * width)[:width]
            yield [cell.strip() for cell in row]

    def ragged(self, cells: int, width: int) -> None:
        line = self.reader.line_num
        if self.strict:
            raise Fault(4, f"{self.path}, line {line}: {cells} cells where the first row has {width}")
        if cells < width:
            self.short += 1
        else:
            self.long += 1
        if len(self.ragged_lines) < 10:
            self.ragged_lines.append(line)

    def notes(self) -> list[str]:
        notes = []
        where = f"lines {', '.join(map(str, self.ragged_lines))}" + (" …" if self.short + self.long > 10 else "")
        if self.short:
            notes.append(f"{self.short} rows have too few cells; the missing ones count as missing ({where})")
        if self.long:
            notes.append(f"{self.long} rows have too many cells; the further ones were ignored ({where})")
        return notes


def encoding_of(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in head:
        raise Fault(4, "the file is binary, not a table; for UTF-16 without a mark give --encoding")
    return "utf-8-sig"


def delimiter_of(head: bytes, encoding: str) -> str:
    """The delimiter that cuts the first rows into the same number of cells most often, and into the most."""
    try:
        # A character cut at the end of the head is not a fault.
        text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(head)
    except LookupError as error:
        raise Fault(2, str(error)) from error
    lines = text.splitlines(keepends=True)[:100]

    def score(delimiter: str) -> tuple[float, int]:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            return (0.0, 0)
        width, times = Counter(widths).most_common(1)[0] if widths else (0, 0)
        return (times / len(widths), width) if width > 1 else (0.0, 0)

    return max(DELIMITERS.values(), key=score)


class Progress:
    """A line each 1,000 rows, then each 10,000, and so on: to be seen early and not to be a flood later."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.step = 1_000

    def row(self, number: int) -> None:
        if number % self.step == 0:
            share = min(100, 100 * self.table.raw.tell() // max(1, self.table.bytes))
            print(f"read {number:,} rows ({share} %)", file=sys.stderr, flush=True)
            if number == 10 * self.step:
                self.step *= 10


def profile(table: Table, args: argparse.Namespace) -> dict:
    """Reads the whole table once."""
    columns = [Column(name) for name in table.names]
    sums = [place_of(name, table.names) for name in args.sum]
    groups = [Group(place_of(name, table.names), sums) for name in args.group_by]
    progress = Progress(table)
    rows = 0
    for rows, row in enumerate(table.rows(), 1):
        for column, cell in zip(columns, row, strict=True):
            column.add(cell)
        for group in groups:
            group.add(row)
        progress.row(rows)
    reports = [column.report(args.top) for column in columns]
    notes = table.notes() + [f"{entry['name']}: {note}" for entry in reports for note in entry["notes"]]
    return {
        "file": table.path.name,
        "bytes": table.bytes,
        "encoding": table.encoding,
        "delimiter": table.delimiter,
        "rows": rows,
        "columns": reports,
        "groups": [group.report(table.names) for group in groups],
        "ragged_rows": {"short": table.short, "long": table.long, "lines": table.ragged_lines},
        "notes": notes if rows else notes + ["there is a header but no row"],
    }


def place_of(name: str, names: list[str]) -> int:
    if name not in names:
        raise Fault(2, f"there is no column {name!r}; the columns are: {', '.join(names)}")
    return names.index(name)


def markdown(report: dict) -> str:
    """The report for people."""
    lines = [f"# {cell_text(report['file'])}", ""]
    lines += [f"{report['rows']:,} rows, {len(report['columns'])} columns, {report['bytes']:,} bytes.", ""]
    if report["notes"]:
        lines += ["## Notes", "", *(f"- {cell_text(note)}" for note in report["notes"]), ""]
    lines += ["## Columns", ""]
    rows = [[c["name"], c["type"], c["count"], c["missing"], c["distinct"]] for c in report["columns"]]
    lines += table_lines(["column", "type", "cells", "missing", "distinct"], rows)
    numbers = [c for c in report["columns"] if c["type"] in ("integer", "number")]
    if numbers:
        keys = ["min", "max", "mean", "median", "sum"]
        lines += [
            "## Numbers",
            "",
            *table_lines(["column", *keys], [[c["name"], *(c[k] for k in keys)] for c in numbers]),
        ]
    dates = [[c["name"], c["min"], c["max"]] for c in report["columns"] if c["type"] == "date"]
    if dates:
        lines += ["## Dates", "", *table_lines(["column", "first", "last"], dates)]
    for column in report["columns"]:
        # Where most values differ, the frequent ones say nothing.
        if column["top"] and column["distinct"] <= max(10, column["count"] / 20) and column["type"] != "number":
            rows = [[t["value"], t["count"], f"{100 * t['count'] / column['count']:.1f} %"] for t in column["top"]]
            lines += [
                f"## Most frequent: {cell_text(column['name'])}",
                "",
                *table_lines(["value", "count", "share"], rows),
            ]
    for group in report["groups"]:
        rows = [[entry["value"], entry["rows"], *entry["sums"].values()] for entry in group["values"][:50]]
        lines += [f"## By {cell_text(group['by'])}", "", *table_lines([group["by"], "rows", *group["sums"]], rows)]
        left = len(group["values"]) - 50
        lines += [f"{left} more are in report.json.", ""] if left > 0 else []
    return "\n".join(lines)


def table_lines(header: list[str], rows: list[list]) -> list[str]:
    """A Markdown table; numbers are set to the right."""
    right = [bool(rows) and not isinstance(cell, str) for cell in rows[0]] if rows else [False] * len(header)
    rule = "|".join("---:" if is_right else "---" for is_right in right)
    body = ["| " + " | ".join(map(cell_text, row)) + " |" for row in rows]
    return ["| " + " | ".join(map(cell_text, header)) + " |", f"|{rule}|", *body, ""]


def cell_text(value) -> str:
    """One cell of a Markdown table."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1e15 else f"{value:.6g}"
    return " ".join(value.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def delimiter(text: str) -> str:
    if text in DELIMITERS:
        return DELIMITERS[text]
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"takes one of {', '.join(DELIMITERS)}, or one character, not {text!r}")
    return text


def top_count(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"takes a number from 0 to 100, not {text!r}")
    return int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="csv_report.py", description="Profiles a CSV file.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--delimiter", type=delimiter, help="comma, semicolon, tab, pipe, or one character")
    parser.add_argument("--encoding", help="default: UTF-8, or UTF-16 with a mark")
    parser.add_argument("--no-header", action="store_true", help="the first row is data")
    parser.add_argument("--top", type=top_count, default=5, metavar="N", help="most frequent values per column")
    parser.add_argument("--group-by", action="append", default=[], metavar="COLUMN", help="rows per value of it")
    parser.add_argument("--sum", action="append", default=[], metavar="COLUMN", help="add up, per group")
    parser.add_argument("--strict", action="store_true", help="refuse ragged rows")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUTPUT_DIR", "out")), metavar="DIR")
    args = parser.parse_args()
    if args.sum and not args.group_by:
        parser.error("--sum needs --group-by")
    return args


def main() -> int:
    args = arguments()
    try:
        report = profile(Table(args.file, args), args)
        args.out.mkdir(parents=True, exist_ok=True)
        # Both texts exist before the first is written, so a fault leaves no half of a report.
        texts = {"report.json": json.dumps(report, indent=2, ensure_ascii=False) + "\n", "report.md": markdown(report)}
        for name, text in texts.items():
            (args.out / name).write_text(text, encoding="utf-8")
    except Fault as fault:
        print(f"csv-report: {fault}", file=sys.stderr)
        return fault.code
    except OSError as error:
        print(f"csv-report: can't write the report: {error}", file=sys.stderr)
        return 1
    print(f"{report['rows']:,} rows, {len(report['columns'])} columns: wrote report.md and report.json to {args.out}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
