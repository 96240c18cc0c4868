#!/usr/bin/env python3
"""Converts numbers between units. See ../SKILL.md."""

import argparse
import difflib
import json
import sys
from decimal import Decimal, InvalidOperation

from units import UNITS, Unit, convert


def fail(code: int, message: str) -> None:
    print(f"convert: {message}", file=sys.stderr)
    sys.exit(code)


def number(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or abs(value.adjusted()) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number that can be converted")
    return value


def digits(text: str) -> int:
    if not text.isdecimal() or int(text) > 20:
        raise argparse.ArgumentTypeError("takes a number from 0 to 20")
    return int(text)


def unit(name: str) -> Unit:
    if name not in UNITS:
        lower = {known.lower(): known for known in UNITS}
        near = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, 3, 0.5)]
        fail(3, f"there is no unit {name!r}" + (f"; did you mean {', '.join(near)}?" if near else "; see --list"))
    return UNITS[name]


def show(value: Decimal, places: int | None) -> str:
    if places is not None:
        value = round(value, places)
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if places is None and "." in text else text) or "0"


def main() -> None:
    parser = argparse.ArgumentParser(description="Converts numbers between units of one kind.")
    parser.add_argument("value", nargs="*", type=number, metavar="VALUE")
    parser.add_argument("--from", dest="source", metavar="UNIT")
    parser.add_argument("--to", dest="target", metavar="UNIT")
    parser.add_argument("--digits", type=digits, metavar="N")
    parser.add_argument("--quiet", action="store_true", help="print only the numbers")
    parser.add_argument("--list", action="store_true", help="print all units by kind")
    args = parser.parse_args()
    if args.list:
        kinds: dict[str, list[str]] = {}
        for name, known in UNITS.items():
            kinds.setdefault(known.kind, []).append(name)
        print(json.dumps(kinds))
        return
    if not (args.source and args.target and args.value):
        parser.error("give --from, --to and a value")
    source, target = unit(args.source), unit(args.target)
    if source.kind != target.kind:
        fail(4, f"{args.source} is a unit of {source.kind}, {args.target} one of {target.kind}")
    results = [(value, show(convert(value, source, target), args.digits)) for value in args.value]
    if args.quiet:
        print("\n".join(result for _, result in results))
        return
    shown = [{"value": f"{value:f}", "result": result} for value, result in results]
    print(json.dumps({"from": args.source, "to": args.target, "kind": source.kind, "results": shown}))


if __name__ == "__main__":
    main()
