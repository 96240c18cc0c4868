"""Asks for a trip and writes a booking form."""

import argparse
import datetime
import json
import sys


def ask(question, parse):
    """Returns the parsed answer; asks at most three times."""
    for _ in range(3):
        try:
            answer = input(f"{question} ").strip()
            return parse(answer)
        except ValueError as error:
            print(f"\nplease try again: {error}")
        except EOFError:
            print("\nthe input has ended", file=sys.stderr)
            sys.exit(3)
    sys.exit(f"no usable answer to {question!r}")


def parse_yes(answer):
    if answer.lower() not in ("y", "n"):
        raise ValueError("answer y or n")
    return answer.lower() == "y"


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--form", required=True)
args = parser.parse_args()
form = {
    "to": ask("Where to?", str),
    "date": ask("When (YYYY-MM-DD)?", datetime.date.fromisoformat).isoformat(),
    "people": ask("How many people?", int),
    "train": ask("By train, y or n?", parse_yes),
}
with open(args.form, "w") as file:
    json.dump(form, file, ensure_ascii=False)
print(f"\nbooked: {form['people']} to {form['to']}")
