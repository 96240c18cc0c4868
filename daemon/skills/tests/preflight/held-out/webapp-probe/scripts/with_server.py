#!/usr/bin/env python3
"""Start server(s), wait for the ports, run a command, clean up."""
import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

try:
    import psutil
except ImportError:
    psutil = None


def wait(port, limit):
    end = time.time() + limit
    while time.time() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            time.sleep(0.3)
    return False


def healthy(port):
    try:
        return urllib.request.urlopen(f"http://localhost:{port}/").status < 500
    except Exception:
        return False


def stop(p):
    if psutil:
        for c in psutil.Process(p.pid).children(recursive=True):
            c.kill()
        p.kill()
    else:
        os.killpg(p.pid, signal.SIGTERM)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--server", action="append", required=True)
    ap.add_argument("--port", action="append", type=int, required=True)
    ap.add_argument("--timeout", type=int, default=30)
    ap.add_argument("command", nargs=argparse.REMAINDER)
    a = ap.parse_args()
    procs = []
    try:
        for cmd, port in zip(a.server, a.port):
            procs.append(subprocess.Popen(cmd, shell=True, start_new_session=True))
            if not wait(port, a.timeout):
                sys.exit(f"port {port} never opened")
            print("ready", port, healthy(port))
        rest = a.command[1:] if a.command[:1] == ["--"] else a.command
        sys.exit(subprocess.run(rest).returncode)
    finally:
        for p in procs:
            stop(p)


main()
