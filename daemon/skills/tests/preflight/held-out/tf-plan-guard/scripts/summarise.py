import glob
import json
import os
import sys

import hcl2

try:
    from ruamel.yaml import YAML
except ImportError:
    YAML = None

root = sys.argv[1]
mods = {}
for f in glob.glob(os.path.join(root, "**", "*.tf"), recursive=True):
    with open(f) as fh:
        for m in hcl2.load(fh).get("module", []):
            for name, body in m.items():
                mods[name] = {"source": body["source"], "version": body.get("version")}
plan = json.load(open(os.path.join(root, "plan.json")))
doc = {"modules": mods, "changes": len(plan.get("resource_changes", []))}
if YAML:
    YAML().dump(doc, sys.stdout)
else:
    json.dump(doc, sys.stdout, indent=2)
