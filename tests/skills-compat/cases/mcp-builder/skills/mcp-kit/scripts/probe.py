"""Starts an MCP server and calls it."""

import argparse
import json
import subprocess
import sys
import threading

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--call", nargs=2, metavar=("TOOL", "ARGUMENTS"), required=True)
parser.add_argument("--transcript", required=True)
parser.add_argument("server", nargs=argparse.REMAINDER)
args = parser.parse_args()
command = [word for word in args.server if word != "--"]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
timer = threading.Timer(10, server.kill)
timer.daemon = True
timer.start()
transcript = open(args.transcript, "w")


def send(message):
    transcript.write(json.dumps({"sent": message}) + "\n")
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def call(number, method, **params):
    send({"id": number, "method": method, "params": params})
    line = server.stdout.readline()
    if not line:
        sys.exit(f"the server did not answer {method}")
    response = json.loads(line)
    transcript.write(json.dumps({"received": response}) + "\n")
    return response


name, arguments = args.call
started = call(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "probe"})
send({"method": "notifications/initialized"})
tools = call(2, "tools/list")["result"]["tools"]
result = call(3, "tools/call", name=name, arguments=json.loads(arguments))
unknown = call(4, "resources/list")
server.stdin.close()
code = server.wait()
timer.cancel()
print(f"server {started['result']['serverInfo']['name']}, tools {[tool['name'] for tool in tools]}")
print(f"{name}: {result['result']['content'][0]['text']}")
print(f"unknown method: error {unknown['error']['code']}; exit code {code}")
