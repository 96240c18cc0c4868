#!/usr/bin/env python3
"""Prints a profile of a table as JSON."""

import json
import sys

import pandas

table = pandas.read_csv(sys.argv[1])
columns = {}
for name, column in table.items():
    columns[name] = {"missing": int(column.isna().sum()), "different": int(column.nunique())}
    if pandas.api.types.is_numeric_dtype(column) and column.dtype != bool:
        columns[name].update(mean=round(float(column.mean()), 2), median=float(column.median()))
by_month = table.assign(month=pandas.to_datetime(table["day"]).dt.strftime("%Y-%m")).groupby("month")["amount"].sum()
print(json.dumps({"rows": len(table), "columns": columns, "by_month": by_month.to_dict()}, indent=1))
