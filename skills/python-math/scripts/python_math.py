#!/usr/bin/env python3
"""Fibonacci numbers, primes and prime factors. See ../SKILL.md."""

import argparse
import json
import math
import sys
from collections.abc import Iterator

FIB_MAX = 100_000
SEQUENCE_MAX = 10_000
PRIMES_MAX = 1_000_000
RANGE_MAX = 10_000_000
FROM_MAX = 10**12
# Below this, the Miller-Rabin test with the first 13 primes as bases is a proof, not a guess.
PROVEN_MAX = 3_317_044_064_679_887_385_961_981
BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
SEGMENT = 1 << 16


def fib(n: int) -> int:
    """F(n) by doubling: F(2k) = F(k)(2F(k+1) - F(k)), F(2k+1) = F(k)² + F(k+1)²."""
    a, b = 0, 1
    for bit in bin(n)[2:]:
        a, b = a * (2 * b - a), a * a + b * b
        if bit == "1":
            a, b = b, a + b
    return a


def fib_sequence(n: int) -> Iterator[int]:
    """F(0) to F(n)."""
    a, b = 0, 1
    for _ in range(n + 1):
        yield a
        a, b = b, a + b


def small_primes(limit: int) -> list[int]:
    """All primes up to and including limit."""
    sieve = bytearray([1]) * (limit + 1)
    sieve[:2] = bytes(min(2, limit + 1))
    for p in range(2, math.isqrt(limit) + 1):
        if sieve[p]:
            sieve[p * p :: p] = bytes(len(range(p * p, limit + 1, p)))
    return [n for n, is_prime in enumerate(sieve) if is_prime]


def primes_from(start: int) -> Iterator[int]:
    """All primes from start on, by a segmented sieve: memory does not grow with the answer."""
    low = max(start, 2)
    while True:
        high = low + SEGMENT
        sieve = bytearray([1]) * SEGMENT
        for p in small_primes(math.isqrt(high)):
            first = max(p * p, -(-low // p) * p)
            sieve[first - low :: p] = bytes(len(range(first, high, p)))
        yield from (low + i for i, is_prime in enumerate(sieve) if is_prime)
        low = high


def is_prime(n: int) -> bool:
    """Miller-Rabin, exact below PROVEN_MAX."""
    if n < 2:
        return False
    for p in BASES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(witness_agrees(base, n, odd, twos) for base in BASES)


def witness_agrees(base: int, n: int, odd: int, twos: int) -> bool:
    """Whether base does not prove n composite, with n - 1 = odd · 2^twos."""
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return True
    return False


def factor(n: int) -> list[int]:
    """Prime factors with repetition, smallest first."""
    factors = []
    for p in small_primes(1000):
        while n % p == 0:
            factors.append(p)
            n //= p
    pending = [n] if n > 1 else []
    while pending:
        part = pending.pop()
        if is_prime(part):
            factors.append(part)
        else:
            divisor = rho(part)
            pending += [divisor, part // divisor]
    return sorted(factors)


def rho(n: int) -> int:
    """A divisor of the odd composite n, by Pollard's rho."""
    root = math.isqrt(n)
    if root * root == n:
        return root
    for c in range(1, n):
        x = y = 2
        divisor = 1
        while divisor == 1:
            x = (x * x + c) % n
            y = (y * y + c) % n
            y = (y * y + c) % n
            divisor = math.gcd(x - y, n)
        if divisor != n:
            return divisor
    raise AssertionError("a composite number has a divisor")


def bounded(name: str, low: int, high: int):
    """An argument type that refuses what is outside low..high."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{name} must be a whole number, not {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{name} must be from {low} to {high}")
        return value

    return parse


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python_math.py", description="Exact integer mathematics.")
    top.add_argument("--json", action="store_true", help="print one JSON document")
    commands = top.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("fib", help="Fibonacci numbers")
    sub.add_argument("n", type=bounded("N", 0, FIB_MAX))
    sub.add_argument("--sequence", action="store_true", help="F(0) to F(N)")
    sub = commands.add_parser("primes", help="prime numbers")
    sub.add_argument("--from", dest="start", type=bounded("--from", 0, FROM_MAX), default=2)
    how = sub.add_mutually_exclusive_group(required=True)
    how.add_argument("--count", type=bounded("--count", 0, PRIMES_MAX))
    how.add_argument("--below", type=bounded("--below", 0, FROM_MAX + RANGE_MAX))
    sub = commands.add_parser("is-prime", help="yes or no")
    sub.add_argument("n", type=bounded("N", 0, PROVEN_MAX - 1))
    sub = commands.add_parser("factor", help="prime factors")
    sub.add_argument("n", type=bounded("N", 1, PROVEN_MAX - 1))
    return top


def selected_primes(args: argparse.Namespace) -> Iterator[int]:
    """What `primes` was asked for."""
    for index, prime in enumerate(primes_from(args.start)):
        if args.count is not None and index >= args.count:
            return
        if args.below is not None and prime >= args.below:
            return
        yield prime


def main() -> int:
    top = parser()
    args = top.parse_args()
    # F(100,000) has 20,899 digits; Python refuses to print more than 4,300 unless told.
    sys.set_int_max_str_digits(25_000)
    if args.command == "fib":
        if args.sequence and args.n > SEQUENCE_MAX:
            top.error(f"N must be at most {SEQUENCE_MAX} with --sequence")
        numbers = fib_sequence(args.n) if args.sequence else [fib(args.n)]
        key = "sequence" if args.sequence else "fib"
    elif args.command == "primes":
        if args.below is not None and args.below - args.start > RANGE_MAX:
            top.error(f"--from and --below may be at most {RANGE_MAX} apart")
        numbers, key = selected_primes(args), "primes"
    elif args.command == "factor":
        numbers, key = factor(args.n), "factors"
    else:
        answer = is_prime(args.n)
        print(json.dumps({"n": args.n, "prime": answer}) if args.json else "yes" if answer else "no")
        return 0

    if args.json:
        document = {"n": args.n} if "n" in args else {}
        found = list(numbers)
        print(json.dumps(document | {key: found[0] if key == "fib" else found}))
    else:
        for number in numbers:
            print(number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
