import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "lib"))

import bibtexparser
from scoutlib.http import get
from scoutlib.text import slug

ap = argparse.ArgumentParser()
ap.add_argument("bib")
ap.add_argument("-o", "--out", required=True)
a = ap.parse_args()

db = bibtexparser.loads(Path(a.bib).read_text())
for e in db.entries:
    e["ID"] = slug(e.get("author", "anon").split(",")[0]) + e.get("year", "nd")
    if "doi" not in e:
        hit = get("https://api.crossref.org/works", params={"query.title": e["title"], "rows": 1}).json()
        e["doi"] = hit["message"]["items"][0]["DOI"]
Path(a.out).write_text(bibtexparser.dumps(db))
