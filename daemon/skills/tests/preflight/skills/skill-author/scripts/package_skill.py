import sys
import zipfile
from pathlib import Path

from scripts.quick_validate import validate


def package(folder: Path, target: Path) -> Path:
    validate(folder)
    out = target / f"{folder.name}.skill"
    with zipfile.ZipFile(out, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder.parent))
    return out


print(package(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else ".")))
