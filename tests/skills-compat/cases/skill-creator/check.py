"""Checks the packed skills."""

import sys
import zipfile
from pathlib import Path

wanted = {
    "kettle": ["kettle/SKILL.md", "kettle/scripts/boil.py"],
    "tea-timer": ["tea-timer/SKILL.md", "tea-timer/scripts/tea.sh"],
}
found = sorted(path.name for path in Path(sys.argv[1], "out").iterdir())
if found != [f"{name}.skill" for name in wanted]:
    sys.exit(f"out has other files: {found}")
for name, entries in wanted.items():
    with zipfile.ZipFile(Path(sys.argv[1], "out", f"{name}.skill")) as archive:
        if archive.testzip() or archive.namelist() != entries:
            sys.exit(f"{name}.skill has other entries: {archive.namelist()}")
        first = archive.read(f"{name}/SKILL.md").decode().splitlines()[1]
        if first != f"name: {name}":
            sys.exit(f"{name}.skill describes another skill: {first!r}")
    print(f"ok: {name}.skill has the skill and nothing hidden")
