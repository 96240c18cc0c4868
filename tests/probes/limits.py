#!/usr/bin/python3
"""Takes as much of one resource as the container gets, keeps it, and prints how much that was.

Takes the resource's name as its one argument. Prints {"taken": N, "error": NAME, ...}, where NAME is the errno that
ended it. A process that holds everything stays behind until the container is removed. Standard library only.
"""

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
ATTEMPTS_MAX = 20_000
held = []


def hold():
    """Waits for ever, without keeping the reader of the output waiting."""
    for descriptor in range(3):
        os.close(descriptor)
    signal.pause()


def call(number, *args):
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def until_refused(take):
    for taken in range(ATTEMPTS_MAX):
        try:
            held.append(take(taken))
        except OSError as error:
            return {"taken": taken, "error": errno.errorcode[error.errno]}
    return {"taken": ATTEMPTS_MAX, "error": ""}


def terminals():
    return until_refused(lambda _: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))


def files():
    return until_refused(lambda _: os.open("/dev/null", os.O_RDONLY))


def queues():
    """POSIX message queues of the default size: 10 messages of 8 KiB."""
    return until_refused(lambda n: os.open(f"/dev/mqueue/{n}", os.O_CREAT | os.O_EXCL | os.O_RDONLY))


def inotify():
    return until_refused(lambda _: call(294 if X86 else 26, 0))


def signals():
    """Signals that are sent with a value and wait in a queue."""
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])

    def send(_):
        if LIBC.sigqueue(os.getpid(), number, ctypes.c_void_p(0)) != 0:
            raise OSError(ctypes.get_errno(), "")

    return until_refused(send)


def processes():
    def start(_):
        if os.fork() == 0:
            hold()

    return until_refused(start)


def contexts():
    """Contexts of asynchronous I/O."""
    context = ctypes.c_ulong(0)
    return until_refused(lambda _: call(206 if X86 else 0, 1, ctypes.byref(context)))


def keys():
    return until_refused(lambda n: call(248 if X86 else 217, b"user", b"%d" % n, b"x", 1, -4))


def netlink():
    return until_refused(lambda _: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))


def pressure():
    return until_refused(lambda _: os.open("/proc/pressure/memory", os.O_RDWR))


def disks():
    """Flushes of a descriptor that does not exist: they succeed only if the kernel never sees them."""
    succeeded = 0
    for number in ((74, 75, 306) if X86 else (82, 83, 267)):
        succeeded += call(number, -1) == 0
    return {"taken": succeeded, "error": ""}


def socket_bytes():
    """Bytes in socket buffers that the container is charged for on cgroup v1, and their limit."""
    numbers = []
    for name in ("usage", "limit"):
        try:
            with open(f"/sys/fs/cgroup/memory/memory.kmem.tcp.{name}_in_bytes") as text:
                numbers.append(int(text.read()))
        except OSError:
            return {}
    return dict(zip(("usage", "limit"), numbers))


def fill(sender, data, bytes_max):
    sent = 0
    try:
        while sent < bytes_max:
            sent += sender.send(data)
    except BlockingIOError:
        pass
    return sent


def tcp():
    """100 connections over loopback, full in both directions."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=8)
    sent = 0
    for _ in range(100):
        client = socket.create_connection(listener.getsockname())
        server = listener.accept()[0]
        held.extend((client, server))
        for end in (client, server):
            end.setblocking(False)
            sent += fill(end, b"x" * 65_536, 64 << 20)
    return {"taken": sent, "error": "", **socket_bytes()}


def udp():
    """60 sockets with the largest receive buffer, full."""
    sent = 0
    for _ in range(60):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.connect(receiver.getsockname())
        sender.setblocking(False)
        held.append(receiver)
        sent += fill(sender, b"x" * 8192, 8 << 20)
    return {"taken": sent, "error": "", **socket_bytes()}


def main():
    names = (terminals, files, queues, inotify, signals, processes, contexts, keys, netlink, pressure, disks, tcp, udp)
    result = {function.__name__: function for function in names}[sys.argv[1]]()
    print(json.dumps(result), flush=True)
    try:
        holder = os.fork()
    except OSError:
        # All processes are taken, and stay behind.
        return
    if holder == 0:
        hold()


main()
