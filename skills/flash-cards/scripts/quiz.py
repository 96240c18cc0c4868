#!/usr/bin/env python3
"""Asks questions from a deck of cards. See ../SKILL.md."""

import argparse
import sys
import unicodedata
from pathlib import Path

DECK = Path(__file__).resolve().parents[1] / "assets" / "capitals.tsv"


def plain(text: str) -> str:
    """Without case, accents and blanks around."""
    letters = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def cards(path: Path) -> list[tuple[str, list[str]]]:
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    pairs = [line.partition("\t") for line in lines]
    bad = [number for number, (_, tab, answer) in enumerate(pairs, 1) if not tab or not answer.strip()]
    if bad or not pairs:
        raise ValueError(f"card {bad[0]} has no answer" if bad else "the deck is empty")
    return [(question.strip(), answer.split("|")) for question, _, answer in pairs]


def ask(number: int, of: int, question: str) -> str | None:
    """None when there is nobody to answer any more."""
    print(f"{number}/{of} {question}? ", end="", flush=True)
    line = sys.stdin.readline()
    if not line or plain(line) == "quit":
        print()
        return None
    return line


def play(deck: list[tuple[str, list[str]]], rounds: int) -> tuple[int, int]:
    right = asked = 0
    for _ in range(rounds):
        wrong = []
        for number, (question, answers) in enumerate(deck, 1):
            given = ask(number, len(deck), question)
            if given is None:
                return right, asked
            asked += 1
            if plain(given) in map(plain, answers):
                right += 1
                print("right", flush=True)
            else:
                wrong.append((question, answers))
                print(f"it is {answers[0]}", flush=True)
        deck = wrong
        if not deck:
            break
    return right, asked


def main() -> None:
    parser = argparse.ArgumentParser(description="Asks questions from a deck of cards.")
    parser.add_argument("--deck", type=Path, default=DECK)
    parser.add_argument("--count", type=int, metavar="N", help="only the first N cards")
    parser.add_argument("--rounds", type=int, default=2, help="how often wrong ones come again")
    args = parser.parse_args()
    try:
        deck = cards(args.deck)[: args.count]
    except (OSError, ValueError) as error:
        parser.error(f"{args.deck}: {error}")
    right, asked = play(deck, args.rounds)
    print(f"score {right}/{asked}")


if __name__ == "__main__":
    main()
