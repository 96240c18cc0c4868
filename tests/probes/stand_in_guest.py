#!/usr/bin/python3
"""Stands in for skilld-guest as PID 1, to try a container's configuration alone.

It protects itself as the guest does, connects to the socket that the test holds, then takes one line of JSON
({"argv": [...]}) after the other, runs each as a child and answers with one line: exit, stdout, stderr.
"""

import ctypes
import json
import socket
import subprocess

PR_SET_DUMPABLE = 4

ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
peer = socket.socket(socket.AF_UNIX)
peer.connect("/run/skilld/guest.sock")
environment = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
}
with peer.makefile("rw") as lines:
    for line in lines:
        done = subprocess.run(
            json.loads(line)["argv"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            cwd="/workspace",
            start_new_session=True,
        )
        answer = {"exit": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
