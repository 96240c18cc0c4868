"""Runs: one call that stages, runs and collects."""

import io
import json
import os

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


def test_artifacts_become_inputs_of_a_run():
    artifacts = skilld.Artifacts(session="scope")
    reference = artifacts.save("in.txt", b"kept").reference
    assert skilld.run("cat in.txt", inputs={"in.txt": reference}, scope=artifacts).stdout == "kept"
    artifacts.delete("in.txt")


@pytest.mark.parametrize("size", [10, 2 << 20])
def test_folders_keep_modes_and_links_and_read_nothing_outside(tmp_path, size):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/x.sh").write_text("#!/bin/sh\necho ran")
    (folder / "deep/x.sh").chmod(0o755)
    (folder / "data.bin").write_bytes(b"x" * size)
    os.link(folder / "data.bin", folder / "same.bin")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "more").symlink_to(tmp_path)
    run = skilld.run("f/deep/x.sh; wc -c < f/same.bin; readlink f/link; cat f/link f/more/secret", inputs={"f": folder})
    assert run.stdout == f"ran\n{size}\n{tmp_path}/secret\n"
    assert run.exit_code == 1


def test_many_files_of_a_folder_are_one_input(box, tmp_path):
    for number in range(400):
        (tmp_path / str(number)).write_text("1")
    assert box.run("ls many | wc -l", inputs={"many": tmp_path}).stdout == "400\n"


def test_a_str_among_named_inputs_is_refused(box):
    for text in ("/etc/passwd", "text", ""):
        with pytest.raises(skilld.InvalidArgumentException, match="Path"):
            box.run("true", inputs={"a": text})


def test_inputs_begin_where_the_command_starts(box):
    run = box.run("cat a.txt inputs/b.txt", inputs={"a.txt": b"1", "inputs/b.txt": b"2"}, cwd="deep/er")
    assert run.stdout == "12"
    run = box.run("mkdir -p inputs; echo 3 > inputs/c.txt", outputs=["inputs/c.txt", "deep/er/a.txt"])
    assert sorted(run.files) == ["deep/er/a.txt", "inputs/c.txt"]


def test_output_without_end_is_cut_off():
    run = skilld.run("yes")
    assert run.reason == "OUTPUT_LIMIT"
    assert "more than permitted" in run.error
    assert len(run.stdout_bytes) <= 64 << 20


def test_stdin_takes_room_from_inputs():
    inputs = {str(number): b"x" * (1 << 20) for number in range(3)}
    run = skilld.run("cat 0 1 2 - | wc -c", inputs=inputs, stdin=b"y" * (1 << 20))
    assert run.stdout == f"{4 << 20}\n"


def test_large_inputs_cannot_be_repeated_by_id(box):
    with pytest.raises(skilld.InvalidArgumentException, match="inputs.stage"):
        box.run("true", inputs={"a": b"x" * (2 << 20)}, exec_id="large")


def test_one_skill_may_be_a_text():
    run = skilld.run("pwd", skills="text-stats")
    assert run.stdout == "/workspace/skills/text-stats\n"
