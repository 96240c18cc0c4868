#!/usr/bin/env python3
"""Writes sales.csv, the table that the demo reports on: made up, the same on every run.

The oddities are meant: quoted commas and quotes, empty cells, a few words where a number belongs.
"""

import csv
import datetime
import random
from pathlib import Path

ROWS = 5_000
REGIONS = {"North": 28, "South": 22, "East": 18, "West": 32}
PRODUCTS = {
    "Desk, oak": ("furniture", 349.00),
    "Chair, swivel": ("furniture", 129.50),
    'Monitor 27"': ("electronics", 279.90),
    "Keyboard": ("electronics", 49.95),
    "Headset": ("electronics", 89.00),
    "Notebook A5": ("paper", 3.20),
    "Envelopes (100)": ("paper", 7.80),
    "Printer paper": ("paper", 5.49),
    "Coffee 1 kg": ("kitchen", 14.90),
    "Müsli": ("kitchen", 4.75),
}
NOTES = ["", "", "", "", "", "", "gift", "call before delivery", 'leave at "side door"', "urgent, please"]
HEADER = "order_id order_date region product category quantity unit_price discount revenue express note".split()


def row(number: int, dice: random.Random) -> list[str]:
    """One order."""
    date = datetime.date(2025, 1, 1) + datetime.timedelta(days=number * 365 // ROWS)
    region = dice.choices(list(REGIONS), REGIONS.values())[0]
    product = dice.choice(list(PRODUCTS))
    category, price = PRODUCTS[product]
    quantity = min(1 + int(dice.expovariate(0.4)), 40)
    discount = dice.choice([0, 0, 0, 0, 5, 10, 15])
    revenue = round(quantity * price * (100 - discount) / 100, 2)
    shown = "n.a." if dice.random() < 0.002 else "" if dice.random() < 0.01 else f"{discount}"
    express = "yes" if dice.random() < 0.15 else "no"
    cells = [f"A{number:05}", str(date), region, product, category, str(quantity), f"{price:.2f}"]
    return [*cells, shown, f"{revenue:.2f}", express, dice.choice(NOTES)]


def main() -> None:
    dice = random.Random(2025)
    with Path(__file__).with_name("sales.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(row(number, dice) for number in range(1, ROWS + 1))


if __name__ == "__main__":
    main()
