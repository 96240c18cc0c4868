import hypothesis
from hypothesis import given, strategies as st
from scripts.slug import slug
import subprocess

subprocess.run(["tox", "-e", "py312"])
