"""The application."""

import json

from store.orders import place
from store.users import find


def run(name):
    """Runs."""
    return json.dumps(place(find(name)))
