"""Copies files into folders by kind, once each: organize.py FROM TO."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

KINDS = json.loads((Path(__file__).parent.parent / "references/kinds.json").read_text())

source, target = Path(sys.argv[1]), Path(sys.argv[2])
seen, index = {}, []
for path in sorted(source.rglob("*")):
    if not path.is_file():
        continue
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest in seen:
        index.append({"name": path.name, "same_as": seen[digest]})
        continue
    seen[digest] = path.name
    kind = next((kind for kind, endings in KINDS.items() if path.suffix.lower() in endings), "other")
    (target / kind).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target / kind / path.name)
    index.append({"name": path.name, "kind": kind, "bytes": path.stat().st_size})
(target / "index.json").write_text(json.dumps(index, ensure_ascii=False, indent=1) + "\n")
for entry in index:
    print(f"{entry['name']} → {entry.get('kind') or 'same as ' + entry['same_as']}")
