#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "httpx>=0.27",
#     "rich",
# ]
# ///
import sys

import httpx
from rich.console import Console

console = Console()
answer = httpx.get("https://rates.example.org/latest", params={"from": sys.argv[1], "to": sys.argv[2]})
console.print(answer.json())
