#!/usr/bin/env python3
"""Scores a table with a trained model: predict.py MODEL TABLE.csv PREDICTIONS.csv."""

import sys

import joblib
import pandas

stored = joblib.load(sys.argv[1])
table = pandas.read_csv(sys.argv[2])
risk = stored["model"].predict_proba(table[stored["columns"]])[:, 1]
table["risk"] = risk.round(3)
table["left"] = ["yes" if value >= 0.5 else "no" for value in risk]
table.to_csv(sys.argv[3], index=False)
print(f"{(table['left'] == 'yes').sum()} of {len(table)} members will leave")
