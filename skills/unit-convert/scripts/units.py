"""The units that convert.py knows. Each is a factor to its kind's base unit, temperatures with an offset too."""

from decimal import Decimal
from typing import NamedTuple


class Unit(NamedTuple):
    """base = (value + before) * numerator / denominator"""

    kind: str
    numerator: Decimal
    denominator: Decimal = Decimal(1)
    before: Decimal = Decimal(0)


def _units(kind: str, **factors: str) -> dict[str, Unit]:
    return {name: Unit(kind, Decimal(factor)) for name, factor in factors.items()}


UNITS = {
    **_units("length", mm="0.001", cm="0.01", m="1", km="1000", inch="0.0254", ft="0.3048", yd="0.9144", mi="1609.344", nmi="1852"),
    **_units("mass", mg="0.000001", g="0.001", kg="1", t="1000", oz="0.028349523125", lb="0.45359237"),
    **_units("time", ms="0.001", s="1", min="60", h="3600", d="86400", week="604800"),
    **_units("data", B="1", kB="1000", MB="1000000", GB="1000000000", KiB="1024", MiB="1048576", GiB="1073741824"),
    "k": Unit("temperature", Decimal(1)),
    "c": Unit("temperature", Decimal(1), before=Decimal("273.15")),
    "f": Unit("temperature", Decimal(5), Decimal(9), Decimal("459.67")),
}


def convert(value: Decimal, source: Unit, target: Unit) -> Decimal:
    """The value in another unit of the same kind."""
    base = (value + source.before) * source.numerator / source.denominator
    return base * target.denominator / target.numerator - target.before
