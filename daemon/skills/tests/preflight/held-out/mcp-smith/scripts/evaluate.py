#!/usr/bin/env python3
import argparse
import asyncio
import xml.etree.ElementTree as ET

from anthropic import Anthropic

from connections import Connection


async def ask(client, conn, question, model):
    tools = (await conn.session.list_tools()).tools
    spec = [{"name": t.name, "description": t.description, "input_schema": t.inputSchema} for t in tools]
    msgs = [{"role": "user", "content": question}]
    while True:
        r = await asyncio.to_thread(client.messages.create, model=model, max_tokens=4096, messages=msgs, tools=spec)
        if r.stop_reason != "tool_use":
            return "".join(b.text for b in r.content if b.type == "text")
        msgs.append({"role": "assistant", "content": r.content})
        out = []
        for b in r.content:
            if b.type == "tool_use":
                res = await conn.session.call_tool(b.name, b.input)
                out.append({"type": "tool_result", "tool_use_id": b.id, "content": str(res.content)})
        msgs.append({"role": "user", "content": out})


async def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-t", "--transport", default="stdio")
    ap.add_argument("-c", "--command")
    ap.add_argument("-a", "--args", nargs="*", default=[])
    ap.add_argument("-m", "--model", default="claude-sonnet-4-5")
    ap.add_argument("file")
    a = ap.parse_args()
    async with Connection(a.command, a.args) as conn:
        for qa in ET.parse(a.file).iter("qa_pair"):
            got = await ask(Anthropic(), conn, qa.findtext("question"), a.model)
            print("PASS" if qa.findtext("answer") in got else "FAIL", qa.findtext("question"))


asyncio.run(main())
