"""Checks the transcript."""

import json
import sys
from pathlib import Path

lines = [json.loads(line) for line in Path(sys.argv[1], "out/transcript.jsonl").read_text().splitlines()]
sent = [line["sent"]["method"] for line in lines if "sent" in line]
if sent != ["initialize", "notifications/initialized", "tools/list", "tools/call", "resources/list"]:
    sys.exit(f"the client sent other messages: {sent}")
received = [line["received"] for line in lines if "received" in line]
if [message["id"] for message in received] != [1, 2, 3, 4]:
    sys.exit(f"the server answered otherwise: {received}")
tools = [(tool["name"], tool["description"]) for tool in received[1]["result"]["tools"]]
if tools != [("add", "Adds two numbers."), ("shout", "Writes text in capitals.")]:
    sys.exit(f"the server has other tools: {tools}")
if received[2]["result"] != {"content": [{"type": "text", "text": "GRÜSSE"}], "isError": False}:
    sys.exit(f"the tool returned {received[2]}")
print("ok: four requests, four answers, one notification")
