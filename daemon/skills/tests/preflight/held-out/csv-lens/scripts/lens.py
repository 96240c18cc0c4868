#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "duckdb>=1.0",
#     "polars[pyarrow]>=1.0",
#     "rich",
# ]
# ///
from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import duckdb
import polars as pl
from rich.console import Console
from rich.table import Table

console = Console()


def settings() -> dict:
    p = Path.home() / ".csv-lens.toml"
    return tomllib.loads(p.read_text()) if p.exists() else {}


def show(df: pl.DataFrame) -> None:
    t = Table(*df.columns)
    for row in df.iter_rows():
        t.add_row(*map(str, row))
    console.print(t)


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("file")
    ap.add_argument("--sql", default="select * from t limit 20")
    a = ap.parse_args()
    con = duckdb.connect()
    con.execute(f"create view t as select * from read_csv_auto('{a.file}')")
    show(con.execute(a.sql).pl())


if __name__ == "__main__":
    main()
