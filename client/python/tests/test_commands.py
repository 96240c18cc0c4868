"""Commands in the background, their handles, and terminals."""

import pytest

import skilld


def test_result_of_a_command(box):
    result = box.commands.run("echo hi")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("hi\n", "", 0, None)


def test_failed_command_raises(box):
    with pytest.raises(skilld.CommandExitException) as caught:
        box.commands.run("echo bad >&2; exit 4")
    assert (caught.value.exit_code, caught.value.stderr) == (4, "bad\n")


def test_timeout_raises(box):
    with pytest.raises(skilld.TimeoutException):
        box.commands.run("sleep 60", timeout=0.5)


def test_handle_answers_a_prompt(box):
    handle = box.commands.run("read name; echo hello $name; read more || echo end", background=True, stdin=True)
    assert handle.pid > 0
    handle.send_stdin("Ada\n")
    handle.close_stdin()
    assert handle.wait().stdout == "hello Ada\nend\n"
    assert handle.exit_code == 0


def test_iteration_yields_output_as_it_comes(box):
    handle = box.commands.run("echo one; read go; echo two >&2", background=True, stdin=True)
    seen = []
    for stdout, stderr, _ in handle:
        seen.append((stdout, stderr))
        if stdout:
            handle.send_stdin("go\n")
    assert seen == [("one\n", None), (None, "two\n")]
    assert (handle.stdout, handle.stderr) == ("one\n", "two\n")


def test_kill_ends_the_whole_tree(box):
    handle = box.commands.run("(sleep 1000 & sleep 1000); echo never", background=True)
    assert box.commands.kill(handle.pid) is True
    with pytest.raises(skilld.CommandExitException) as caught:
        handle.wait()
    assert (caught.value.result.reason, caught.value.stdout) == ("KILLED_BY_CLIENT", "")
    assert [info.exec_id for info in box.commands.list()] == []
    assert box.commands.kill(999_999) is False


def test_list_names_running_commands(box):
    handle = box.commands.run(["sleep", "1000"], background=True)
    [info] = box.commands.list()
    assert (info.pid, info.exec_id, info.cmd, info.args) == (handle.pid, handle.exec_id, "sleep", ["1000"])
    assert handle.kill() is True
    ended = [info for info in box.commands.list(all=True) if info.exec_id == handle.exec_id]
    assert [info.is_running for info in ended] == [False]


def test_connect_reads_from_an_offset(box):
    handle = box.commands.run("printf 0123456789; read go", background=True, stdin=True)
    handle.disconnect()
    again = box.commands.connect(handle.pid, stdout_offset=4)
    again.send_stdin("go\n")
    assert again.wait().stdout == "456789"
    whole = box.commands.connect(handle.exec_id)
    assert whole.wait().stdout == "0123456789"


def test_unknown_command_is_not_found(box):
    with pytest.raises(skilld.NotFoundException):
        box.commands.connect(999_999)
    with pytest.raises(skilld.NotFoundException):
        box.commands.connect("no-such-exec")


def test_terminal_has_a_size_and_takes_keys(box):
    terminal = box.pty.create(skilld.PtySize(rows=20, cols=70))
    box.pty.send_stdin(terminal.pid, "stty size\n")
    screen = b""
    for _, _, data in terminal:
        screen += data
        if b"20 70" in screen:
            break
    box.pty.resize(terminal.pid, skilld.PtySize(rows=33, cols=90))
    box.pty.send_stdin(terminal.pid, "stty size; exit\n")
    screen = b"".join(data for _, _, data in terminal)
    assert b"33 90" in screen
    assert terminal.exit_code == 0


def test_disconnected_handle_has_no_result(box):
    handle = box.commands.run("sleep 1000", background=True)
    handle.disconnect()
    assert handle.exit_code is None
    assert list(handle) == []
    with pytest.raises(skilld.SkilldError, match="commands.connect"):
        handle.wait()
    assert handle.kill() is True


def test_handlers_in_the_background_are_called_by_wait(box):
    seen = []
    handle = box.commands.run("echo out; echo err >&2", background=True, on_stdout=seen.append, on_stderr=seen.append)
    assert handle.wait().exit_code == 0
    assert sorted(seen) == ["err\n", "out\n"]


@pytest.mark.filterwarnings("ignore:.*never awaited")
def test_coroutine_handlers_of_blocking_calls_are_refused(box):
    async def handler(text):
        pass

    with pytest.raises(TypeError, match="coroutine functions"):
        box.commands.run("echo out", on_stdout=handler)


def test_error_of_a_handler_ends_the_command(box):
    def handler(text):
        raise skilld.SkilldError("mine")

    with pytest.raises(skilld.SkilldError, match="mine"):
        box.run("echo out; sleep 1000", on_stdout=handler)
    assert box.commands.list() == []


def test_pid_of_an_ended_command_is_not_killed(box):
    handle = box.commands.run("true", background=True)
    handle.wait()
    assert box.commands.kill(handle.pid) is False
    assert box.commands.connect(handle.pid).wait().exit_code == 0
