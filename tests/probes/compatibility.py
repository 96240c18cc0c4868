#!/usr/bin/python3
"""Runs what ordinary skills are made of, to see that the container's restrictions leave it alone.

Prints {"checks": {name: {"got": ..., "want": ..., "ok": bool}}}; programs that are not installed are left out and
named under "absent". Needs no network but the container's own loopback.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

checks = {}
absent = []

PYTHON_MULTIPROCESSING = """
import multiprocessing as mp
def square(n): return n * n
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(100)) == [n * n for n in range(100)], method
    queue = mp.Queue(); lock = mp.Lock(); value = mp.Value("i", 0)
    def add():
        with lock: value.value += 1
        queue.put(1)
    children = [mp.get_context("fork").Process(target=add) for _ in range(4)]
    [c.start() for c in children]; [queue.get() for _ in children]; [c.join() for c in children]
    print(value.value)
"""
PYTHON_THREADS = """
import threading, concurrent.futures, os
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(sum(pool.map(lambda n: n % 7, range(10000))) == sum(n % 7 for n in range(10000)))
"""
PYTHON_ASYNCIO = """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    print(out.decode().strip())
asyncio.run(main())
"""
PYTHON_SHARED_MEMORY = """
from multiprocessing import shared_memory
import mmap, tempfile
block = shared_memory.SharedMemory(create=True, size=1 << 20); block.buf[0] = 7
again = shared_memory.SharedMemory(name=block.name); print(again.buf[0]); again.close(); block.close(); block.unlink()
with tempfile.TemporaryFile() as file:
    file.truncate(1 << 16); mmap.mmap(file.fileno(), 0)[0:2]
"""
PYTHON_HTTP = """
import http.server, threading, subprocess
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
print(subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", url], capture_output=True, text=True).stdout)
server.shutdown()
"""
NODE = """
const { Worker, isMainThread, parentPort } = require("worker_threads");
const { execFileSync } = require("child_process");
if (isMainThread) {
  const worker = new Worker(__filename);
  worker.on("message", (m) => { console.log(m + execFileSync("echo", ["hi"]).toString().trim()); });
} else { parentPort.postMessage("worker "); }
"""
GIT = """set -e
git init -q . && git config user.email a@example.com && git config user.name A
echo one > file && git add file && git commit -q -m one && git gc -q && git clone -q . copy && git -C copy log --format=%s
"""
GCC = """set -e
printf '#include <stdio.h>\\n#include <pthread.h>\\nvoid*f(void*p){return p;}int main(){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);puts("hello");}' > a.c
gcc -pthread -o a a.c && ./a
"""


def check(name, program, argv, want):
    if shutil.which(program) is None:
        absent.append(name)
        return
    with tempfile.TemporaryDirectory(dir="/workspace") as folder:
        argv = [part.replace("@", folder) for part in argv]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, timeout=240)
    got = done.stdout.strip() if done.returncode == 0 else f"{done.returncode}: {done.stdout}{done.stderr}"[-2000:]
    checks[name] = {"got": got, "want": want, "ok": got == want}


def script(name, suffix, text):
    path = os.path.join(tempfile.gettempdir(), name + suffix)
    with open(path, "w") as file:
        file.write(text)
    return path


def main():
    python = sys.executable
    check("python multiprocessing", python, [python, script("mp", ".py", PYTHON_MULTIPROCESSING)], "4")
    check("python threads", python, [python, "-c", PYTHON_THREADS], "True")
    check("python asyncio", python, [python, "-c", PYTHON_ASYNCIO], "hi")
    check("python shared memory", python, [python, "-c", PYTHON_SHARED_MEMORY], "7")
    check("python venv", python, [python, "-m", "venv", "--without-pip", "@/venv"], "")
    check("curl", "curl", [python, "-c", PYTHON_HTTP], "200")
    check("node", "node", ["node", script("worker", ".js", NODE)], "worker hi")
    check("git", "git", ["bash", "-c", GIT], "one")
    check("sqlite3", "sqlite3", ["sqlite3", "@/db", "pragma journal_mode=wal; create table t(a); insert into t values (41); select a + 1 from t;"], "wal\n42")
    check("jq", "jq", ["jq", "-n", "-c", "[range(3)]"], "[0,1,2]")
    check("gcc", "gcc", ["bash", "-c", GCC], "hello")
    check("bash", "bash", ["bash", "-c", "set -o pipefail; for i in 1 2 3; do (echo $i | cat) & wait; done | sort | tr -d '\\n'; nice -n 5 true; ulimit -n 100"], "123")
    check("zip", "zip", ["bash", "-c", "echo x > f && zip -q a.zip f && unzip -p a.zip f 2>/dev/null || python3 -m zipfile -l a.zip | tail -1 | cut -c1"], "x") if shutil.which("unzip") else None
    check("file", "file", ["file", "-b", "--mime-type", "/etc/passwd"], "text/plain")
    check("perl", "perl", ["perl", "-e", "print 6*7"], "42")
    check("tar", "tar", ["bash", "-c", "mkfifo p; echo x > f; tar cf - f p | tar tf - | tr '\\n' ' '"], "f p")
    print(json.dumps({"checks": checks, "absent": absent}))


main()
