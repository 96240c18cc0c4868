"""Representations of results in consoles, terminals and notebooks."""

import base64
import contextlib
import os
import pty
import socket
import subprocess
import sys
import threading
import time

import skilld
from skilld.results import RunResult

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_html_escapes_what_a_sandbox_prints(box):
    attack = "<script>alert('x')</script>\x1b[31mred\x1b[0m"
    run = box.run(["printf", "%s", attack], outputs=["none"])
    html = run._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "\x1b" not in html and "red" in html


def test_html_escapes_names_and_cells_of_files(box):
    name = 'out/<img src=x onerror="alert(1)">.csv'
    box.files.write(name, "a,b\n<b>1</b>,2\n")
    html = box.run("true", outputs=["out/*.csv"])._repr_html_()
    assert "<img" not in html and "<b>1</b>" not in html
    assert "<td>&lt;b&gt;1&lt;/b&gt;</td>" in html


def test_html_has_images_inline_and_tables(box):
    inputs = {"out/dot.png": PNG, "out/table.csv": b"name,count\nx,1\n", "out/page.svg": b"<svg onload='x'/>"}
    html = box.run("true", inputs=inputs, outputs=["out/dot.png", "out/table.csv", "out/page.svg"])._repr_html_()
    assert f"data:image/png;base64,{base64.b64encode(PNG).decode()}" in html
    assert "<th>name</th>" in html and "<td>x</td>" in html
    assert "<svg" not in html


def test_html_of_much_output_is_bounded(box):
    run = box.run("seq 100000")
    assert len(run.stdout) > 500_000
    assert len(run._repr_html_()) < 30_000


def test_repr_is_short_and_says_what_failed(box):
    assert repr(box.run("echo hi")) == "RunResult(exit_code=0, stdout='hi\\n')"
    assert len(repr(box.run("seq 100000"))) < 400
    assert "exit_code=3" in repr(box.run("exit 3"))
    assert repr(box) == f"Sandbox({box.sandbox_id!r})"
    assert box.sandbox_id in box.get_info()._repr_html_()


def test_nothing_is_printed_without_a_terminal(box, capfd):
    box.files.write("large.bin", b"x" * (8 << 20))
    box.files.read("large.bin", "bytes")
    assert capfd.readouterr() == ("", "")


def relay(listener, target):
    """Passes the bytes of one connection on, slowly towards the daemon."""
    client, _ = listener.accept()
    server = socket.socket(socket.AF_UNIX)
    server.connect(target)

    def copy(source, sink, wait):
        with contextlib.suppress(OSError):
            while data := source.recv(256 << 10):
                time.sleep(wait)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=copy, args=(server, client, 0), daemon=True).start()
    threading.Thread(target=copy, args=(client, server, 0.05), daemon=True).start()


def test_terminal_shows_the_progress_of_a_long_transfer(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "slow"))
    listener.listen()
    target = os.environ["SKILLD_ENDPOINT"].partition(":")[2]
    threading.Thread(target=relay, args=(listener, target), daemon=True).start()
    program = (
        "import skilld\n"
        f"with skilld.Sandbox.create(endpoint='unix:{tmp_path}/slow') as box:\n"
        "    box.files.write('large.bin', b'x' * (16 << 20))\n"
    )
    child, terminal = pty.openpty()
    ended = subprocess.Popen([sys.executable, "-c", program], stderr=terminal)
    os.close(terminal)
    screen = b""
    while True:
        try:
            data = os.read(child, 65536)
        except OSError:
            break
        screen += data
    assert ended.wait() == 0, screen
    assert b"large.bin" in screen and b" % " in screen and b"MiB/s" in screen
    assert screen.endswith(b"\r\x1b[K")


def test_html_of_many_and_large_files_is_bounded():
    def file(path, data, mime_type):
        return {"path": path, "data": data, "size": len(data), "mime_type": mime_type, "sha256": "", "mode": 0o644,
                "truncated": False, "link_target": "", "artifact": ""}  # fmt: skip

    images = [file(f"{number}.png", b"x" * (3 << 20), "image/png") for number in range(4)]
    table = file("wide.csv", b"a," * 200_000 + b"\n" + b"1," * 1000, "text/csv")
    rows = file("long.csv", b"a,b\n" + b"1,2\n" * 1_000_000, "text/csv")
    texts = [file(f"{number}.txt", b"x", "text/plain") for number in range(1000)]
    answer = {"end": {"exit_code": 0}, "stdout": b"", "stderr": b"", "lost": 0, "exec": "a/b", "warnings": [],
              "files": [*images, table, rows, *texts], "summary": None, "skills": [], "inputs": []}  # fmt: skip
    html = RunResult(answer)._repr_html_()
    assert html.count("<img") == 1
    assert html.count("<td>") < 200 and "more rows" in html
    assert "956 more files" in html
    assert len(html) < 5 << 20


def test_exports_exist():
    for name in skilld.__all__:
        assert getattr(skilld, name) is not None
    assert set(skilld.__all__) <= set(dir(skilld))
