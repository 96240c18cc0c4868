"""The same for asyncio."""

import asyncio
import subprocess
import sys

import pytest

import skilld


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 300))


def test_many_runs_at_once_keep_their_outputs():
    async def main():
        async with await skilld.AsyncSandbox.create() as box:
            runs = await asyncio.gather(*(box.run(["echo", str(number)]) for number in range(30)))
            return [run.stdout for run in runs]

    assert run(main()) == [f"{number}\n" for number in range(30)]


def test_files_commands_and_handlers():
    async def main():
        async with await skilld.AsyncSandbox.create(skills=["python-math"]) as box:
            await box.files.write("a.txt", b"abc")
            assert await box.files.read("a.txt") == "abc"
            assert b"".join([piece async for piece in await box.files.read("a.txt", "stream")]) == b"abc"
            handle = await box.commands.run("read x; echo $x", background=True, stdin=True)
            await handle.send_stdin("typed\n")
            assert [piece async for piece in handle] == [("typed\n", None, None)]
            seen = []

            async def on_stdout(text):
                await asyncio.sleep(0)
                seen.append(text)

            result = await box.commands.run("echo 1", on_stdout=on_stdout)
            assert (seen, result.stdout) == (["1\n"], "1\n")
            ran = await box.run("python scripts/python_math.py fib 10")
            assert ran.stdout == "55\n"

    run(main())


def test_one_call_without_a_sandbox():
    assert run(skilld.arun("cat in.txt", inputs={"in.txt": b"whole"})).stdout == "whole"


@pytest.mark.parametrize(("on_cancel", "left"), [("kill", False), ("leave", True)])
def test_cancelled_run_is_killed_or_left(on_cancel, left):
    async def main():
        async with await skilld.AsyncSandbox.create() as box:
            started = asyncio.Event()
            command = "echo begun; sleep 1000"

            async def begin():
                handler = lambda text: started.set()  # noqa: E731
                await box.run(command, exec_id="cut", on_cancel=on_cancel, on_stdout=handler)

            task = asyncio.ensure_future(begin())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [info.exec_id for info in await box.commands.list()] == (["cut"] if left else [])

    run(main())


def test_cancelled_call_without_handlers_is_killed():
    async def main():
        async with await skilld.AsyncSandbox.create() as box:
            task = asyncio.ensure_future(box.run("touch begun; sleep 1000", exec_id="cut"))
            while not task.done() and not await box.files.exists("begun"):
                await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await box.commands.list() == []

    run(main())


def test_errors_are_those_of_blocking_calls():
    with pytest.raises(skilld.SandboxNotFoundException):
        run(skilld.AsyncSandbox.connect("no-such-sandbox"))


def test_each_loop_may_use_one_connection():
    for number in range(3):
        assert run(skilld.arun(["echo", str(number)])).stdout == f"{number}\n"


PROGRAM = """
import asyncio, skilld

async def main():
    async with await skilld.AsyncSandbox.create() as box:
        await asyncio.gather(*(box.run("true") for _ in range(4)))
        task = asyncio.ensure_future(box.run("touch begun; sleep 1000"))
        while not await box.files.exists("begun"):
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_interpreter_ends_in_good_order():
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_cancelling_twice_still_kills_the_command():
    async def main():
        async with await skilld.AsyncSandbox.create() as box:
            for handler in (None, lambda text: None):
                task = asyncio.ensure_future(box.run("touch begun; sleep 1000", on_stdout=handler))
                while not task.done() and not await box.files.exists("begun"):
                    await asyncio.sleep(0.05)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await task
                while await box.commands.list():
                    await asyncio.sleep(0.05)
                await box.files.remove("begun")

    run(main())


def test_run_that_is_cancelled_while_it_starts_leaves_nothing():
    async def main():
        async with await skilld.AsyncSandbox.create() as box:
            for number in range(20):
                task = asyncio.ensure_future(box.run("sleep 1000"))
                await asyncio.sleep(number / 2000)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await box.commands.list() == []

    run(main())


def test_creation_that_is_cancelled_leaves_nothing():
    async def main():
        for number in range(20):
            task = asyncio.ensure_future(skilld.AsyncSandbox.create(metadata={"cut": "yes"}))
            await asyncio.sleep(number / 2000)
            task.cancel()
            try:
                await (await task).kill()
            except asyncio.CancelledError:
                pass
        while await skilld.AsyncSandbox.list({"cut": "yes"}):
            await asyncio.sleep(0.05)

    run(main())


def test_cancelled_read_loses_no_output():
    async def main():
        async with await skilld.AsyncSandbox.create() as box:
            handle = await box.commands.run("for i in $(seq 3000); do echo $i; done", background=True)
            while handle.exit_code is None:
                try:
                    await asyncio.wait_for(handle.__anext__(), 0.0003)
                except asyncio.TimeoutError:
                    pass
                except StopAsyncIteration:
                    break
            assert handle.stdout == "".join(f"{number}\n" for number in range(1, 3001))

    run(main())


LATE_CALL = """
import asyncio, atexit, skilld

@atexit.register
def late():
    try:
        asyncio.run(skilld.arun("true"))
    except RuntimeError as error:
        print(error)

asyncio.run(skilld.arun("true"))
"""


def test_call_at_the_end_of_the_interpreter_is_refused():
    ended = subprocess.run([sys.executable, "-c", LATE_CALL], capture_output=True, text=True, timeout=300)
    assert "the interpreter is ending" in ended.stdout, ended.stderr
