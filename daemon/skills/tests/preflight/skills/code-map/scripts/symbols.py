#!/usr/bin/env python3
import sys

import tree_sitter_python
from tree_sitter import Language, Parser

parser = Parser(Language(tree_sitter_python.language()))
tree = parser.parse(open(sys.argv[1], "rb").read())
for node in tree.root_node.children:
    print(node.type, node.start_point)
