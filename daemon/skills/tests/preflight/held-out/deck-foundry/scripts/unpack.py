import sys
import zipfile
from pathlib import Path
from defusedxml import minidom

NS = {
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "p": "http://schemas.openxmlformats.org/presentationml/2006/main",
}

src, dst = sys.argv[1], Path(sys.argv[2])
dst.mkdir(parents=True, exist_ok=True)
zipfile.ZipFile(src).extractall(dst)
for f in [*dst.rglob("*.xml"), *dst.rglob("*.rels")]:
    f.write_bytes(minidom.parseString(f.read_bytes()).toprettyxml(indent=" ", encoding="utf-8"))
