#!/usr/bin/env python3
"""Serves a folder on a local port while a command runs. Exits with the command's code."""

import argparse
import socket
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--folder", required=True)
parser.add_argument("command", nargs="+")
args = parser.parse_args()

server = subprocess.Popen(
    [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(args.port), "--directory", args.folder],
    stderr=subprocess.DEVNULL,
)
try:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", args.port), timeout=1).close()
            break
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server on port {args.port} does not answer")
            time.sleep(0.1)
    code = subprocess.run(args.command).returncode
finally:
    server.terminate()
    server.wait()
sys.exit(code)
