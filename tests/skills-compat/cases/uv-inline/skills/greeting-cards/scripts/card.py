#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = ["skilld-compat-greeting>=1.0,<2"]
# ///
"""Draws a greeting card as text."""

import argparse
import importlib.metadata

from skilld_compat_greeting import greet

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--name", required=True)
parser.add_argument("--language", default="en")
args = parser.parse_args()
text = greet(args.name, args.language)
version = importlib.metadata.version("skilld-compat-greeting")
print("+" + "-" * (len(text) + 2) + "+")
print(f"| {text} |")
print("+" + "-" * (len(text) + 2) + "+")
print(f"drawn with skilld-compat-greeting {version}")
