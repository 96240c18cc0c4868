"""Makes the folder of a new skill."""

import argparse
import string
from pathlib import Path

TEMPLATE = Path(__file__).parent.parent / "assets/skill-template.md"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("name")
parser.add_argument("--in", dest="parent", type=Path, required=True)
args = parser.parse_args()
folder = args.parent / args.name
for part in ("scripts", "references"):
    (folder / part).mkdir(parents=True)
text = string.Template(TEMPLATE.read_text()).substitute(name=args.name)
(folder / "SKILL.md").write_text(text)
print(f"created {args.name}")
