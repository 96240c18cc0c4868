"""Makes `python -m venv` fit for a container without a network. It stands before the standard library in PYTHONPATH.

The venv module of the standard library, which this one loads, makes environments without packages, into which nothing
could be installed here. These see the packages of the Python that makes them. It also refuses a link as its target,
which `.venv` in the folder of a skill is; here the link is resolved first.
"""

import glob
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


def add_packages_of_this_environment(env_dir):
    """Lets a new environment see the packages of this one, if it is the image's or a skill's.

    An environment that a command made stands for itself, as it does elsewhere.
    """
    if sys.prefix == sys.base_prefix or sys.prefix.startswith(("/workspace/", "/tmp/")):
        return
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    for folder in glob.glob(os.path.join(glob.escape(env_dir), "lib", "python*", "site-packages")):
        with open(os.path.join(folder, "zz_skilld_parent.pth"), "w", encoding="utf-8") as file:
            file.write(line)


def adapt(builder):
    standard_create = builder.create

    def create(self, env_dir):
        env_dir = os.path.realpath(env_dir) if os.path.islink(env_dir) else env_dir
        self.system_site_packages = True
        standard_create(self, env_dir)
        add_packages_of_this_environment(os.fspath(env_dir))

    builder.create = create


adapt(load_standard_module().EnvBuilder)
