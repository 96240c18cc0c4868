"""Prints a welcome note."""

import argparse

from skilld_compat_letters import letter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--name", required=True)
parser.add_argument("--text", required=True)
parser.add_argument("--language", default="en")
args = parser.parse_args()
print(letter(args.name, args.text, args.language), end="")
