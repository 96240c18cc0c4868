"""How results show themselves."""

import base64
import os
import pty
import sys

import skilld

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


def test_terminal_shows_the_progress_of_a_long_transfer():
    program = (
        "import os, time, skilld\n"
        "class Slow:\n"
        "    def read(self):\n"
        "        return b'x' * (40 << 20)\n"
        "with skilld.Sandbox.create() as box:\n"
        "    for _ in range(4):\n"
        "        box.files.write('large.bin', Slow())\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    screen = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        screen += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, screen
    assert b"Traceback" not in screen
    # A fast machine sends it before a bar would appear.
    assert screen == b"" or b"MiB/s" in screen


def test_exports_exist():
    for name in skilld.__all__:
        assert getattr(skilld, name) is not None
    assert set(skilld.__all__) <= set(dir(skilld))
