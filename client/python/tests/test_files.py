"""Files of a sandbox."""

import io
from pathlib import Path

import pytest

import skilld


def test_files_go_in_and_out(box):
    info = box.files.write("notes/a.txt", "grüße")
    assert (info.name, info.path, info.size) == ("a.txt", "/workspace/notes/a.txt", 7)
    assert box.files.read("notes/a.txt") == "grüße"
    assert box.files.read("/workspace/notes/a.txt", format="bytes") == "grüße".encode()
    box.files.write("notes/b.bin", io.BytesIO(b"\x00\x01"))
    assert box.files.read("notes/b.bin", "bytes") == b"\x00\x01"


def test_stream_yields_all_bytes(box):
    data = bytes(range(256)) * 4096
    box.files.write("stream.bin", data)
    pieces = list(box.files.read("stream.bin", format="stream"))
    assert len(pieces) > 1
    assert b"".join(pieces) == data


def test_local_folders_are_sent_and_outputs_downloaded(box, tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/x.sh").write_text("#!/bin/sh\necho ran")
    (tmp_path / "in/deep/x.sh").chmod(0o755)
    box.files.write("out/sent", Path(tmp_path / "in"))
    assert box.run("out/sent/deep/x.sh").stdout == "ran\n"
    paths = box.outputs.download(tmp_path / "got", "out/sent/**")
    assert [Path(path).name for path in paths] == ["x.sh"]
    assert (tmp_path / "got/out/sent/deep/x.sh").read_text() == "#!/bin/sh\necho ran"


def test_lists_are_sorted_and_have_a_depth(box):
    for name in ("tree/b", "tree/a", "tree/sub/c", "tree/sub/sub/d"):
        box.files.write(name, "1")
    names = [(entry.name, entry.type) for entry in box.files.list("tree")]
    assert names == [("a", "file"), ("b", "file"), ("sub", "dir")]
    deeper = [entry.path for entry in box.files.list("tree", depth=2)]
    assert deeper[-1] == "/workspace/tree/sub/sub"
    assert "/workspace/tree/sub/sub/d" not in deeper


def test_directories_are_made_renamed_and_removed(box):
    assert box.files.make_dir("made/inner") is True
    assert box.files.make_dir("made/inner") is False
    box.files.write("made/inner/f", "1")
    entry = box.files.rename("made", "-moved")
    assert (entry.path, entry.type) == ("/workspace/-moved", "dir")
    assert box.files.exists("-moved/inner/f")
    box.files.remove("-moved")
    assert not box.files.exists("-moved")


def test_info_describes_files_and_the_root(box):
    box.files.write("info.txt", "12345")
    box.run(["ln", "-s", "info.txt", "link"]).check()
    info = box.files.get_info("info.txt")
    assert (info.type, info.size, info.mode) == ("file", 5, 0o644)
    assert info.modified_time is not None
    assert box.files.get_info("link").symlink_target == "info.txt"
    assert box.files.get_info("/workspace").type == "dir"


@pytest.mark.parametrize("call", ["read", "get_info", "remove"])
def test_missing_file_is_not_found(box, call):
    with pytest.raises(skilld.FileNotFoundException) as caught:
        getattr(box.files, call)("no/such/file")
    assert caught.value.reason == "FILE_NOT_FOUND"


def test_path_outside_is_refused(box):
    with pytest.raises(skilld.InvalidArgumentException) as caught:
        box.files.read("../etc/passwd")
    assert caught.value.reason in ("PATH_ESCAPES", "INVALID_REQUEST")


def test_artifacts_have_versions(box):
    artifacts = skilld.Artifacts(session="files")
    first = artifacts.save("notes.txt", "one")
    box.files.write("notes.txt", "two")
    second = artifacts.save_from(box, "notes.txt")
    assert second.version == first.version + 1
    assert artifacts.load("notes.txt") == b"two"
    assert artifacts.load("notes.txt", first.version) == b"one"
    assert [info.version for info in artifacts.list("notes.txt")] == [first.version, second.version]
    assert [info.name for info in artifacts.list()] == ["notes.txt"]
    artifacts.delete("notes.txt")
    assert artifacts.list() == []


def test_paths_are_normalised(box):
    box.files.write("norm/./a/../b.txt", "1")
    assert box.files.get_info("/workspace//norm/x/../b.txt").path == "/workspace/norm/b.txt"
    assert [entry.name for entry in box.files.list("norm/")] == ["b.txt"]


@pytest.mark.parametrize("path", ["", ".", "/workspace", "/workspace/", "x/.."])
def test_the_workspace_itself_is_not_removed(box, path):
    box.files.write("stays.txt", "1")
    with pytest.raises(skilld.InvalidArgumentException, match="kill"):
        box.files.remove(path)
    assert box.files.exists("stays.txt")


def test_stream_is_closed_by_its_block(box):
    box.files.write("stream.bin", b"x" * (4 << 20))
    with box.files.read("stream.bin", format="stream") as stream:
        assert next(stream)
    assert list(stream) == []


def test_times_out_of_range_are_none(box):
    box.run(["touch", "-d", "@300000000000", "late.txt"]).check()
    assert box.files.get_info("late.txt").modified_time is None


def test_download_lists_globs_that_matched_nothing(box, tmp_path):
    box.files.write("out/a.txt", "1")
    paths = box.outputs.download(tmp_path, ["out/a.txt", "out/none"])
    assert (len(paths), paths.skipped, paths.unmatched) == (1, [], ["out/none"])
