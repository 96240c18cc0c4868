"""Lets `python -m venv .venv` work in the folder of a skill, where .venv is a link to a folder that can be written.

The venv module of the standard library refuses a link as its target. This module loads that one and resolves the link
first. It stands before the standard library in PYTHONPATH.
"""

import importlib.util
import os
import sys
import sysconfig


def load_standard_module():
    folder = os.path.join(sysconfig.get_path("stdlib"), "venv")
    spec = importlib.util.spec_from_file_location(
        "venv", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    # The import system then continues with this module, `venv.__main__` included.
    sys.modules["venv"] = module
    spec.loader.exec_module(module)
    return module


def resolve_links(builder):
    standard_create = builder.create

    def create(self, env_dir):
        standard_create(self, os.path.realpath(env_dir) if os.path.islink(env_dir) else env_dir)

    builder.create = create


resolve_links(load_standard_module().EnvBuilder)
