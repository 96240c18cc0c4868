"""Errors of callers and their messages."""

import pickle

import pytest

import skilld
from skilld import _skilld


@pytest.mark.parametrize("command", ["echo a\0b", ["echo", "a\0b"]])
def test_nul_is_refused(box, command):
    with pytest.raises(skilld.InvalidArgumentException, match="NUL"):
        box.run(command)


def test_lone_surrogates_are_refused_everywhere(box):
    odd = "a\udc80"
    calls = [
        lambda: box.run(odd),
        lambda: box.run(["echo", odd]),
        lambda: box.run("true", envs={"A": odd}),
        lambda: box.run("true", stdin=odd),
        lambda: box.run("true", inputs={odd: b""}),
        lambda: box.run("true", outputs=[odd]),
        lambda: box.files.read(odd),
        lambda: box.files.write("x", odd),
        lambda: box.files.write(odd, b""),
        lambda: skilld.Sandbox.connect(odd),
        lambda: skilld.Sandbox.create(metadata={"a": odd}),
        lambda: skilld.Skills().session("s").call("skill_load", {"skill": odd}),
        lambda: skilld.Artifacts().save(odd, b""),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(skilld.InvalidArgumentException):
            call()
            pytest.fail(f"call {number} was accepted")


def test_two_inputs_of_one_target_are_refused(box):
    for second in ("./a.txt", "/workspace/a.txt", "b/../a.txt"):
        with pytest.raises(skilld.InvalidArgumentException, match="two inputs"):
            box.run("true", inputs={"a.txt": b"1", second: b"2"})
    with pytest.raises(skilld.InvalidArgumentException, match="two inputs"):
        box.run("true", inputs=["/etc/hostname", "/proc/sys/kernel/../kernel/hostname"])


def test_too_many_inputs_are_refused(box):
    with pytest.raises(skilld.InvalidArgumentException, match="257 inputs"):
        box.run("true", inputs={f"many/{number}": b"" for number in range(257)})
    assert not box.files.exists("many")


def test_inputs_beyond_the_disk_are_refused():
    with skilld.Sandbox.create(limits={"memory_bytes": 256 << 20, "disk_bytes": 8 << 20}) as box:
        with pytest.raises(skilld.NotEnoughSpaceException) as caught:
            box.run("true", inputs={"large": b"x" * (16 << 20)})
        assert caught.value.reason == "DISK_FULL"
        assert not box.files.exists("large")


def test_wrong_kinds_are_named(box, tmp_path):
    with pytest.raises(TypeError, match="inputs"):
        box.run("true", inputs="one-file.txt")
    with pytest.raises(TypeError, match="int"):
        box.run("true", inputs={"a": 1})
    with pytest.raises(FileNotFoundError):
        box.run("true", inputs=[tmp_path / "missing"])
    with pytest.raises(TypeError, match="colour"):
        skilld.Sandbox.create(colour="red")
    with pytest.raises(skilld.InvalidArgumentException, match="memory"):
        skilld.Sandbox.create(limits={"memory": 1})
    with pytest.raises(ValueError, match="on_cancel"):
        box.run("true", on_cancel="perhaps")
    with pytest.raises(skilld.InvalidArgumentException, match="timeout"):
        box.run("true", timeout=-1)


def test_bad_glob_costs_no_run(box):
    with pytest.raises(skilld.InvalidArgumentException):
        box.run("touch ran", outputs=["../**"])
    assert not box.files.exists("ran")


def test_impossible_limits_claim_nothing():
    before = {info.sandbox_id for info in skilld.Sandbox.list()}
    with pytest.raises(skilld.InvalidArgumentException) as caught:
        skilld.run("true", limits={"memory_bytes": 1 << 50})
    assert caught.value.reason == "LIMIT_UNSUPPORTED"
    assert {info.sandbox_id for info in skilld.Sandbox.list()} <= before


def test_daemon_that_is_not_there_is_named(tmp_path):
    endpoint = f"unix:{tmp_path}/none.sock"
    with pytest.raises(skilld.ConnectionException) as caught:
        skilld.Sandbox.list(endpoint=endpoint)
    assert caught.value.reason == "CONNECTION_FAILED"
    assert endpoint in str(caught.value)
    assert "SKILLD_ENDPOINT" in caught.value.hint and "--endpoint" not in str(caught.value)


def test_endpoint_and_token_are_checked():
    with pytest.raises(skilld.InvalidArgumentException, match="unix:/path"):
        skilld.Sandbox.list(endpoint="ftp://x")
    with pytest.raises(skilld.AuthenticationException, match="token"):
        skilld.Sandbox.list(token="two words")


def test_versions_agree_or_are_named():
    own = skilld.__version__
    for version in (own, "0.1.0", "0.1.7", "0.2.0", "1.0.0", "12.3.4-rc.1"):
        assert _skilld.version_fault(version) is None
    for version in ("0.0.9", "0.0.1-rc.2", "", "unknown"):
        assert "upgrade the daemon" in _skilld.version_fault(version)


def test_errors_survive_pickling(box):
    error = pytest.raises(skilld.CommandExitException, box.commands.run, "exit 3").value
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.exit_code, str(again)) == (type(error), 3, str(error))
