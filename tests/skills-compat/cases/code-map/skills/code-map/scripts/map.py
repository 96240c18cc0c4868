#!/usr/bin/env python3
"""Maps the modules of a Python project."""

import argparse
import ast
import json
import subprocess
from pathlib import Path


def find_todos(project):
    command = ["rg", "--json", "--sort", "path", r"#\s*TODO:?\s*(.*)", project]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    for entry in map(json.loads, lines):
        if entry["type"] == "match":
            data = entry["data"]
            path = Path(data["path"]["text"]).relative_to(project)
            yield {"file": str(path), "line": data["line_number"], "text": data["lines"]["text"].strip()}


def read_module(path):
    tree = ast.parse(path.read_text())
    imports, bare = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.add(node.module)
        elif isinstance(node, ast.FunctionDef) and not ast.get_docstring(node):
            bare.append(node.name)
    return imports, sorted(bare)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("project", type=Path)
parser.add_argument("--json", type=Path, required=True)
parser.add_argument("--dot", type=Path, required=True)
args = parser.parse_args()
paths = {".".join(path.relative_to(args.project).with_suffix("").parts): path for path in args.project.rglob("*.py")}
modules, broken = {}, []
for name, path in sorted(paths.items()):
    try:
        imports, bare = read_module(path)
    except SyntaxError as error:
        broken.append(f"{path.relative_to(args.project)}:{error.lineno}")
        continue
    modules[name] = {"imports": sorted(imports & paths.keys()), "undocumented": bare}
todos = list(find_todos(args.project))
args.json.write_text(json.dumps({"modules": modules, "broken": broken, "todos": todos}, indent=1))
edges = [f'  "{name}" -> "{other}";' for name, module in modules.items() for other in module["imports"]]
args.dot.write_text("\n".join(["digraph imports {", "  node [shape=box];", *edges, "}", ""]))
print(f"{len(modules)} modules, {len(edges)} imports, {len(todos)} todos, {len(broken)} broken")
