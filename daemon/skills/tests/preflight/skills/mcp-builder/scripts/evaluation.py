"""Answers the questions of an evaluation file with a model and the server's tools."""
import argparse
import asyncio
import xml.etree.ElementTree as ET
from pathlib import Path

from anthropic import Anthropic

from connections import connect


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-t", default="stdio")
    parser.add_argument("-c")
    parser.add_argument("-a", nargs="*")
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    client = Anthropic()
    async with connect(args.t, args.c, args.a) as session:
        for pair in ET.parse(args.file).getroot():
            print(pair.findtext("question"), await session.list_tools(), client)


asyncio.run(main())
