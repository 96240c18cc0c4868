"""Thin wrappers around the MCP client transports."""
from contextlib import AsyncExitStack

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


class Connection:
    def __init__(self, command, args):
        self.params = StdioServerParameters(command=command, args=args)
        self.stack = AsyncExitStack()

    async def __aenter__(self):
        r, w = await self.stack.enter_async_context(stdio_client(self.params))
        self.session = await self.stack.enter_async_context(ClientSession(r, w))
        await self.session.initialize()
        return self

    async def __aexit__(self, *exc):
        await self.stack.aclose()


def http_connection(url):
    from mcp.client.streamable_http import streamablehttp_client
    return streamablehttp_client(url)
