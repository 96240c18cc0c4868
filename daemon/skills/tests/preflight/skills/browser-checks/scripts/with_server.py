#!/usr/bin/env python3
"""Start servers, wait for their ports, run a command, stop them."""
import argparse
import socket
import subprocess
import sys
import time


def wait_for(port, timeout=30):
    start = time.time()
    while time.time() - start < timeout:
        try:
            with socket.create_connection(("localhost", port), timeout=1):
                return True
        except OSError:
            time.sleep(0.5)
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", action="append", dest="servers")
    parser.add_argument("--port", action="append", dest="ports", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    processes = []
    try:
        for server, port in zip(args.servers, args.ports):
            processes.append(subprocess.Popen(server, shell=True))
            if not wait_for(port):
                raise RuntimeError(f"port {port}")
        sys.exit(subprocess.run(args.command).returncode)
    finally:
        for process in processes:
            process.terminate()


main()
