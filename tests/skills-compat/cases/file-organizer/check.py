"""Checks the sorted files and their index."""

import json
import sys
from pathlib import Path

root = Path(sys.argv[1], "out/sorted")
found = {str(path.relative_to(root)): path.read_text() for path in root.glob("*/*")}
wanted = {
    "text/Grüße an alle.txt": "Grüße aus Kärnten\n",
    "tables/売上 2026.csv": "jahr,menge\n2026,3\n",
    'data/it\'s "quoted" & $HOME.json': '{"a": 1}\n',
    "other/no extension": "x\n",
    "text/🐇 notes.MD": "# Lapin\n",
}
if found != wanted:
    sys.exit(f"out/sorted has other files: {found}")
index = json.loads((root / "index.json").read_text())
copies = [entry for entry in index if "same_as" in entry]
if len(index) != 6 or copies != [{"name": "Kopie von Grüße.txt", "same_as": "Grüße an alle.txt"}]:
    sys.exit(f"index.json has other entries: {index}")
print("ok: five files sorted under their own names, one duplicate found")
