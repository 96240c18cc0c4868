from __future__ import annotations

import argparse
import importlib
import typing as t

import pandas as pd

if t.TYPE_CHECKING:
    from numpy.typing import NDArray
    import pyarrow as pa


def mask(series: pd.Series) -> "NDArray":
    return series.isna().to_numpy()


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("book")
    ap.add_argument("--rule", action="append", default=[])
    ap.add_argument("--out", default="profile.xlsx")
    a = ap.parse_args()
    frames = pd.read_excel(a.book, sheet_name=None, engine="openpyxl")
    xw = importlib.import_module("xlsxwriter")
    book = xw.Workbook(a.out)
    sheet = book.add_worksheet("profile")
    r = 0
    for name, df in frames.items():
        for col in df:
            sheet.write_row(r, 0, [name, str(col), int(mask(df[col]).sum())])
            r += 1
            for rule in a.rule:
                mod = importlib.import_module(f"rules.{rule}")
                sheet.write(r, 3, mod.check(df[col]))
    book.close()


if __name__ == "__main__":
    main()
