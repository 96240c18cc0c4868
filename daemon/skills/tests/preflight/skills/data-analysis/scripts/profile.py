"""Prints the columns of a table."""
import sys

import pandas as pd

try:
    import polars as pl
except ImportError:
    pl = None

try:
    import pyarrow.parquet as pq
    HAS_ARROW = True
except (ImportError, ModuleNotFoundError):
    HAS_ARROW = False


def load(path):
    if pl is not None and path.endswith(".csv"):
        return pl.read_csv(path).to_pandas()
    if path.endswith(".parquet") and not HAS_ARROW:
        sys.exit("parquet files need pyarrow: pip install pyarrow")
    return pd.read_csv(path)


print(load(sys.argv[1]).describe(include="all"))
