from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def connect(kind, command, args):
    return ClientSession(*stdio_client(StdioServerParameters(command=command, args=args)))
