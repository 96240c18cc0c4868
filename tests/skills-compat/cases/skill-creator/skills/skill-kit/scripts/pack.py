"""Packs a skill into a file: pack FOLDER DIRECTORY."""

import sys
import zipfile
from pathlib import Path

from scripts.check import find_faults


def is_left_out(path):
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


folder, target = Path(sys.argv[1]), Path(sys.argv[2])
faults = find_faults(folder)
if faults:
    sys.exit("not packed: " + "; ".join(faults))
archive = target / f"{folder.name}.skill"
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not is_left_out(path.relative_to(folder)):
            file.write(path, path.relative_to(folder.parent))
print(f"packed {archive.name}")
