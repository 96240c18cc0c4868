"""Runs: one call that stages, runs and collects."""

import io
import json

import pytest

import skilld
from conftest import wait_until_gone

CSV_REPORT = "python scripts/csv_report.py --group-by region --sum revenue inputs/sales.csv"


def test_readme_example_collects_the_report(table):
    with skilld.Sandbox.create(skills=["csv-report"]) as box:
        with open(table, "rb") as file:
            run = box.run(CSV_REPORT, inputs={"sales.csv": file}, outputs=["out/**"])
    assert run.stdout == "5,000 rows, 11 columns: wrote report.md and report.json to /workspace/out/\n"
    assert "## By region" in run.files["out/report.md"].text()
    assert run.files["out/report.json"].json()["rows"] == 5000
    assert list(run.files) == ["out/report.json", "out/report.md"]


def test_one_call_runs_a_local_file_and_leaves_nothing(tmp_path):
    script = tmp_path / "hello.py"
    script.write_text("print('hello')")
    run = skilld.run("python3 hello.py", inputs=[str(script)])
    assert (run.stdout, run.exit_code, run.success) == ("hello\n", 0, True)
    wait_until_gone(run.sandbox_id)


def test_one_call_runs_a_skill(table):
    run = skilld.run(CSV_REPORT, skills=["csv-report"], inputs=[table], outputs="out/report.json")
    assert json.loads(run.files["out/report.json"].data)["rows"] == 5000


def test_inputs_come_from_bytes_text_files_and_folders(tmp_path):
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "folder/inner/leaf.txt").write_text("leaf")
    inputs = {
        "a.bin": b"\x00\xff",
        "b.txt": io.StringIO("text"),
        "c/d.txt": tmp_path / "folder/inner/leaf.txt",
        "tree": tmp_path / "folder",
    }
    run = skilld.run("od -An -tx1 a.bin; cat b.txt c/d.txt tree/inner/leaf.txt", inputs=inputs)
    assert run.stdout == " 00 ff\ntextleafleaf"
    assert sorted(run.inputs) == ["a.bin", "b.txt", "c/d.txt", "tree"]


def test_large_inputs_are_sent_before_the_run(tmp_path):
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * (5 << 20))
    inputs = {"one.bin": large, "two.bin": b"y" * (2 << 20), "small.txt": b"z"}
    run = skilld.run("wc -c one.bin two.bin small.txt | awk '{ print $1 }'", inputs=inputs)
    assert run.stdout.split() == [str(5 << 20), str(2 << 20), "1", str((7 << 20) + 1)]
    wait_until_gone(run.sandbox_id)


def test_failed_command_is_a_result_until_it_is_checked(box):
    run = box.run("echo out; echo err >&2; exit 7")
    assert (run.exit_code, run.stdout, run.stderr, run.success) == (7, "out\n", "err\n", False)
    with pytest.raises(skilld.CommandExitException) as caught:
        run.check()
    assert (caught.value.exit_code, caught.value.stderr, caught.value.result) == (7, "err\n", run)


def test_timeout_is_reported(box):
    run = box.run("echo begin; sleep 60", timeout=0.5)
    assert (run.reason, run.stdout) == ("TIMEOUT", "begin\n")
    with pytest.raises(skilld.TimeoutException):
        run.check()


def test_missing_program_is_reported(box):
    run = box.run(["no-such-program"])
    assert (run.exit_code, run.reason) == (127, "SPAWN_FAILED")
    assert "no-such-program" in run.error


def test_list_is_passed_without_a_shell(box):
    assert box.run(["printf", "%s|", "a b", "$HOME", "*"]).stdout == "a b|$HOME|*|"


def test_stdin_environment_and_directory_reach_the_command(box):
    run = box.run("cat; echo $COLOUR; pwd", stdin="in\n", envs={"COLOUR": "red"}, cwd="out")
    assert run.stdout == "in\nred\n/workspace/out\n"


def test_output_bytes_are_exact(box):
    run = box.run("head -c 300000 /dev/zero | tr '\\0' '\\377'; head -c 70000 /dev/zero >&2")
    assert run.stdout_bytes == b"\xff" * 300000
    assert run.stderr_bytes == b"\0" * 70000


def test_handlers_see_each_byte_once_and_in_order(box):
    out, err = [], []
    run = box.run("for i in $(seq 500); do echo é$i; done; echo end >&2", on_stdout=out.append, on_stderr=err.append)
    expected = "".join(f"é{i}\n" for i in range(1, 501))
    assert ("".join(out), "".join(err)) == (expected, "end\n")
    assert (run.stdout, run.stderr) == (expected, "end\n")


def test_same_id_finds_its_run_and_never_runs_twice(box):
    first = box.run("echo x >> twice.txt; cat twice.txt", exec_id="once", outputs=["twice.txt"])
    again = box.run("echo x >> twice.txt; cat twice.txt", exec_id="once", outputs=["twice.txt"])
    assert (first.stdout, again.stdout) == ("x\n", "x\n")
    assert again.files["twice.txt"].text() == "x\n"
    with pytest.raises(skilld.SkilldError) as caught:
        box.run("echo other", exec_id="once")
    assert caught.value.reason == "ID_TAKEN"


def test_kept_sandbox_has_the_files_of_its_run():
    run = skilld.run("echo kept > kept.txt", keep=True)
    box = skilld.Sandbox.connect(run.sandbox_id)
    assert box.files.read("kept.txt") == "kept\n"
    assert box.kill() is True
    assert box.kill() is False


def test_outputs_are_saved_as_artifacts_and_become_inputs(box):
    artifacts = skilld.Artifacts(session="runs", prefix="results/")
    run = box.run("echo saved > out/saved.txt", outputs=["out/saved.txt"], save_to=artifacts)
    [reference] = run.artifacts
    assert reference.startswith("artifact://results/out/saved.txt@")
    assert artifacts.load("results/out/saved.txt") == b"saved\n"
    staged = box.inputs.stage({"again.txt": reference}, scope=artifacts)
    assert (staged, box.files.read("again.txt")) == (["again.txt"], "saved\n")
    assert artifacts.delete("results/out/saved.txt") is True
    assert artifacts.delete("results/out/saved.txt") is False


def test_missing_outputs_are_listed(box):
    run = box.run("true", outputs=["out/none-*.txt"])
    assert (dict(run.files), run.files.unmatched) == ({}, ["out/none-*.txt"])
