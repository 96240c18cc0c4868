"""Checks the report, the diff and the bundle."""

import subprocess
import sys
import tempfile
from pathlib import Path

out = Path(sys.argv[1], "out").resolve()
report = (out / "changes.md").read_text()
changes = "- changed bread.txt\n- renamed steps.txt to method.txt\n- added notes.txt\n- removed todo.txt\n"
wanted = f"# Second version\n\n{changes}\n4 files changed, 2 insertions(+), 2 deletions(-)\n"
if sorted(report.splitlines()) != sorted(wanted.splitlines()):
    sys.exit(f"changes.md has other lines: {report!r}")
diff = (out / "changes.diff").read_text().splitlines()
if diff.count("-water 300 g") != 1 or diff.count("+water 350 g") != 1:
    sys.exit(f"changes.diff has other lines: {diff}")
if [line for line in diff if line.startswith("rename ")] != ["rename from steps.txt", "rename to method.txt"]:
    sys.exit(f"changes.diff has other renames: {diff}")
print("ok: the report and the diff have the four changes")
with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["git", "clone", "--quiet", "--branch", "main", out / "history.bundle", folder], check=True)
    log = subprocess.run(["git", "-C", folder, "log", "--format=%s by %an"], check=True, capture_output=True, text=True)
    if log.stdout != "Second version by Change Report\nFirst version by Change Report\n":
        sys.exit(f"the bundle has other commits: {log.stdout!r}")
print("ok: the bundle has both commits")
