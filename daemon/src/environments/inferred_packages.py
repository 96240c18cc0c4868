"""Chooses which of the inferred requirements a build installs: those that the image lacks and the index has.

The daemon runs this file, `build_environment.py` and the others as one program. Inferred requirements come from the
text of a skill, which may name packages that do not exist, or that do not fit to what the skill states.
"""

import importlib.util

# Requirements that are tried one by one; uv needs about 0.2 s for each.
TRIED_REQUIREMENTS_MAX = 30


def is_in_image(module):
    """Returns True if the image has a module, by whichever package."""
    try:
        return bool(module) and importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def resolve_inferred(builder, requirements, resolve):
    """Returns what `resolve` returns for the requirements, without inferred ones that the image has or that it refuses.

    `resolve` takes a list of requirements, and raises NeedError for one that cannot be met.
    """
    modules = builder.options.get("inferred", {})
    stated = [line for line in requirements if line not in modules]
    # Of a namespace the image may have another package's part.
    inferred = [line for line in requirements if line in modules and ("." in modules[line] or not is_in_image(modules[line]))]
    try:
        return resolve(stated + inferred)
    except NeedError:
        if not inferred:
            raise
    # A fault of what is stated ends the build here.
    pins = resolve(stated)
    usable = []
    for line in inferred[:TRIED_REQUIREMENTS_MAX]:
        try:
            pins = resolve(stated + usable + [line])
            usable.append(line)
        except NeedError as error:
            report(f"{line} is left out: {error}")
    if left_out := sorted(set(inferred) - set(usable)):
        builder.warn(f"left out: {', '.join(left_out)} (inferred from the skill's text and not installable)")
    return pins


