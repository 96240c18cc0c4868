"""Checks the map and the diagram."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
found = json.loads((out / "map.json").read_text())
modules = {
    "app": {"imports": ["store.orders", "store.users"], "undocumented": []},
    "store.orders": {"imports": ["store.users"], "undocumented": ["place"]},
    "store.users": {"imports": [], "undocumented": ["find"]},
}
expect("modules", found["modules"], modules)
expect("broken files", found["broken"], ["store/draft.py:1"])
todos = [(todo["file"], todo["line"]) for todo in found["todos"]]
expect("todos", todos, [("store/orders.py", 5), ("store/users.py", 5)])
titles = [title.text for title in ElementTree.parse(out / "imports.svg").iter("{http://www.w3.org/2000/svg}title")]
arrows = sorted(title for title in titles if "->" in title)
expect("arrows", arrows, ["app->store.orders", "app->store.users", "store.orders->store.users"])
