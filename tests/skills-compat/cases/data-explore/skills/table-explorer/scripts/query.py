#!/usr/bin/env python3
"""Runs a query and writes its rows: query.py SQL TARGET.csv|TARGET.parquet."""

import sys

import duckdb

query, target = sys.argv[1:]
rows = duckdb.sql(query)
if target.endswith(".parquet"):
    rows.write_parquet(target)
else:
    rows.write_csv(target)
print(f"{len(rows)} rows")
