"""Processes and threads of the caller: forks, signals, many threads."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import skilld
from conftest import is_listed, wait_until, wait_until_gone


def in_child(work):
    """Runs work in a fork and returns what it wrote."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, work().encode())
        except BaseException as error:  # noqa: BLE001
            os.write(writer, f"{type(error).__name__} {getattr(error, 'reason', None)}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_uses_connections_of_its_own(box):
    assert box.run("echo parent").stdout == "parent\n"
    assert in_child(lambda: box.run("true").stdout) == "SkilldError USE_AFTER_FORK"
    assert in_child(lambda: skilld.Sandbox.connect(box.sandbox_id).run("echo child").stdout) == "child\n"
    assert box.run("echo parent again").stdout == "parent again\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_handles_and_streams_are_refused_after_a_fork(box):
    handle = box.commands.run("cat", background=True, stdin=True)
    box.files.write("forked.bin", b"x" * (1 << 20))
    stream = box.files.read("forked.bin", format="stream")
    calls = [handle.wait, handle.kill, lambda: next(handle), lambda: next(stream)]
    for call in calls:
        assert in_child(lambda: str(call())) == "SkilldError USE_AFTER_FORK"
    handle.close_stdin()
    assert handle.wait().exit_code == 0
    assert b"".join(stream) == b"x" * (1 << 20)


def test_signal_handlers_may_make_calls(box):
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(box.run("echo from the handler").stdout))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert box.run("sleep 1; echo ended").stdout == "ended\n"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == ["from the handler\n"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_run(box):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            box.run("true")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            command = ["echo", str(number)]
            assert in_child(lambda: skilld.Sandbox.connect(box.sandbox_id).run(command).stdout) == f"{number}\n"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_many_threads_share_a_connection(box):
    # A sandbox runs at most 32 commands at once.
    with skilld.Sandbox.create() as second, skilld.Sandbox.create() as third:
        boxes = [box, second, third]

        def work(number):
            run = boxes[number % 3].run
            return [run(["echo", f"{number}-{turn}"]).stdout for turn in range(4)]

        with ThreadPoolExecutor(64) as pool:
            outputs = list(pool.map(work, range(64)))
    assert outputs == [[f"{number}-{turn}\n" for turn in range(4)] for number in range(64)]


# A shell starts its background jobs with SIGINT ignored, and Python leaves that as it is.
TAKE_SIGINT = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
PROGRAM = f"""{TAKE_SIGINT}
import sys, skilld
box = skilld.Sandbox.connect(sys.argv[1])
print("ready", flush=True)
try:
    box.run("touch begun-$MODE; sleep 1000", exec_id=sys.argv[2], on_cancel=sys.argv[2], envs={{"MODE": sys.argv[2]}})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("mode", ["kill", "leave"])
def test_ctrl_c_ends_the_command_or_leaves_it(box, mode):
    program = [sys.executable, "-c", PROGRAM, box.sandbox_id, mode]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        wait_until(lambda: box.files.exists(f"begun-{mode}"), "the command begins")
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
    running = [info.exec_id for info in box.commands.list()]
    assert running == ([mode] if mode == "leave" else [])
    box.commands.kill(mode)


def test_interrupted_run_without_a_sandbox_leaves_nothing():
    run_id = f"python-{uuid.uuid4()}"
    program = f"{TAKE_SIGINT}import skilld\nskilld.run('sleep 1000', exec_id='{run_id}')"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as child:
        wait_until(lambda: is_listed(run_id), "the run begins")
        child.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in child.communicate()[1]
    wait_until_gone(run_id)


def test_ctrl_c_twice_still_kills_the_command():
    with skilld.Sandbox.create() as box:
        program = [sys.executable, "-c", PROGRAM, box.sandbox_id, "kill"]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            wait_until(lambda: box.files.exists("begun-kill"), "the command begins")
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGINT)
            child.communicate()
        wait_until(lambda: box.commands.list() == [], "the command ends")


def test_process_ends_while_calls_are_open(box):
    program = (
        "import sys, threading, time, skilld\n"
        "box = skilld.Sandbox.connect(sys.argv[1])\n"
        "threading.Thread(target=box.run, args=('touch open; sleep 1000',), daemon=True).start()\n"
        "while not box.files.exists('open'): time.sleep(0.05)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, box.sandbox_id], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    for info in box.commands.list():
        box.commands.kill(info.pid)
