"""Life of sandboxes."""

import pytest

import skilld


def test_sandbox_is_found_by_its_metadata_and_killed():
    box = skilld.Sandbox.create(metadata={"job": "life"}, envs={"NAME": "value"}, timeout=600)
    assert box.run("echo $NAME").stdout == "value\n"
    [info] = skilld.Sandbox.list({"job": "life"})
    assert (info.sandbox_id, info.state, info.metadata) == (box.sandbox_id, "ready", {"job": "life"})
    same = skilld.Sandbox.connect(box.sandbox_id)
    assert same.run("echo same").stdout == "same\n"
    assert same.is_running()
    assert skilld.Sandbox.kill(box.sandbox_id) is True
    assert skilld.Sandbox.kill(box.sandbox_id) is False
    assert not box.is_running()


def test_end_of_the_block_removes_the_sandbox():
    with pytest.raises(KeyError), skilld.Sandbox.create() as box:
        raise KeyError
    with pytest.raises(skilld.SandboxNotFoundException) as caught:
        skilld.Sandbox.connect(box.sandbox_id)
    assert (caught.value.reason, caught.value.code) == ("WORKSPACE_NOT_FOUND", "NOT_FOUND")
    assert caught.value.hint


def test_set_timeout_moves_the_end(box):
    box.set_timeout(300)
    before = box.get_info().end_at
    box.set_timeout(900)
    moved = box.get_info().end_at - before
    assert 590 < moved.total_seconds() < 900


def test_skills_are_staged_and_known_again():
    with skilld.Sandbox.create(skills=["python-math", "text-stats"]) as box:
        assert box.skills.names == ["python-math", "text-stats"]
        run = box.run("python scripts/python_math.py fib 10", skill="python-math")
        assert run.stdout == "55\n"
        assert skilld.Sandbox.connect(box.sandbox_id).skills.names == ["python-math", "text-stats"]
        assert box.run("pwd").stdout == "/workspace\n"
        assert box.run("pwd", skills=["csv-report"]).stdout == "/workspace/skills/csv-report\n"
        assert box.skills.names[-1] == "csv-report"


def test_failed_creation_leaves_nothing():
    before = {info.sandbox_id for info in skilld.Sandbox.list()}
    with pytest.raises(skilld.NotFoundException) as caught:
        skilld.Sandbox.create(skills=["no-such-skill"])
    assert caught.value.reason == "SKILL_NOT_FOUND"
    assert {info.sandbox_id for info in skilld.Sandbox.list()} <= before


def test_taken_id_does_not_remove_its_sandbox(box):
    with pytest.raises(skilld.SkilldError) as caught:
        skilld.Sandbox.create(sandbox_id=box.sandbox_id)
    assert caught.value.reason == "ID_TAKEN"
    assert box.is_running()


def test_unknown_pool_is_not_found():
    with pytest.raises(skilld.NotFoundException) as caught:
        skilld.Sandbox.create("no-such-pool")
    assert caught.value.reason == "POOL_NOT_FOUND"


def test_failed_creation_with_an_id_spares_its_sandbox(box):
    for arguments in ({"template": "no-such-pool"}, {"timeout": -1}, {"limits": {"memory_bytes": 1 << 50}}):
        with pytest.raises(skilld.SkilldError):
            skilld.Sandbox.create(sandbox_id=box.sandbox_id, **arguments)
        assert box.is_running()


def test_sandboxes_are_described_and_renewed_by_their_ids(box):
    skilld.Sandbox.set_timeout(box.sandbox_id, 400)
    before = skilld.Sandbox.get_info(box.sandbox_id).end_at
    skilld.Sandbox.set_timeout(box.sandbox_id, 900)
    assert skilld.Sandbox.get_info(box.sandbox_id).end_at > before


def test_timeouts_beyond_a_day_are_accepted():
    with skilld.Sandbox.create(timeout=3 * 86400) as box:
        left = box.get_info().end_at - box.get_info().started_at
        assert left.days >= 0
