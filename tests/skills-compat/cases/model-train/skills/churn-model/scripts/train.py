#!/usr/bin/env python3
"""Trains a model on a table with a yes/no column."""

import argparse
import json
from pathlib import Path

import joblib
import pandas
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("table")
parser.add_argument("--target", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--metrics", type=Path, required=True)
args = parser.parse_args()
table = pandas.read_csv(args.table)
features = table.drop(columns=[args.target]).select_dtypes("number")
target = table[args.target] == "yes"
train_x, test_x, train_y, test_y = train_test_split(features, target, test_size=0.25, random_state=7, stratify=target)
model = make_pipeline(StandardScaler(), LogisticRegression())
model.fit(train_x, train_y)
guesses = model.predict(test_x)
joblib.dump({"model": model, "columns": list(features)}, args.model)
metrics = {
    "rows": {"train": len(train_x), "test": len(test_x)},
    "accuracy": accuracy_score(test_y, guesses),
    "confusion": confusion_matrix(test_y, guesses).tolist(),
    "weights": {name: round(float(w), 1) for name, w in zip(features, model[-1].coef_[0])},
}
args.metrics.write_text(json.dumps(metrics, indent=1))
print(f"accuracy {metrics['accuracy']:.3f} on {len(test_x)} members")
