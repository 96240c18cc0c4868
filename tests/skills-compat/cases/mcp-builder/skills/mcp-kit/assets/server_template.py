"""An MCP server of the standard library alone. Put your own functions into TOOLS."""

import json
import sys


def add(a, b):
    """Adds two numbers."""
    return a + b


TOOLS = {"add": add}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "template", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": name, "description": tool.__doc__} for name, tool in TOOLS.items()]}
    if method == "tools/call":
        result = TOOLS[params["name"]](**params["arguments"])
        return {"content": [{"type": "text", "text": str(result)}], "isError": False}
    raise LookupError(method)


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    response = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        response["result"] = answer(request["method"], request.get("params", {}))
    except LookupError as error:
        response["error"] = {"code": -32601, "message": f"unknown: {error}"}
    print(json.dumps(response), flush=True)
print("the client has gone", file=sys.stderr)
