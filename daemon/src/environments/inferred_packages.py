"""Chooses which of the inferred requirements a build installs: those that the image lacks and the index has.

The daemon runs this file, `build_environment.py` and the others as one program. Inferred requirements come from the
text of a skill, which may name packages that do not exist, or that do not fit to what the skill states.
"""

import importlib.util

# Further resolutions; uv needs about 0.2 s for each. Halving finds a few bad ones among 100.
RESOLUTIONS_MAX = 60


def is_in_image(module):
    """Returns True if the image has a module, in any of its packages."""
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
    # A namespace package may be installed in part: the image can have google.auth without google.cloud.
    is_provided = {line: "." not in module and is_in_image(module) for line, module in modules.items()}
    inferred = [line for line in requirements if line in modules and not is_provided[line]]
    try:
        return resolve(stated + inferred)
    except NeedError:
        if not inferred:
            raise
    # A fault of what is stated ends the build here.
    pins = resolve(stated)
    usable, refused = [], []
    # Groups that are still to be tried, the last one first.
    half = len(inferred) // 2
    groups = [part for part in (inferred[half:], inferred[:half]) if part]
    for _ in range(RESOLUTIONS_MAX):
        if not groups:
            break
        group = groups.pop()
        try:
            pins = resolve(stated + usable + group)
            usable += group
        except NeedError as error:
            if len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
            else:
                refused += group
                report(f"{group[0]} is left out: {error}")
    if refused:
        builder.warn(f"left out: {', '.join(sorted(refused))} (inferred from the skill's text and not installable)")
    if untried := sorted(line for group in groups for line in group):
        builder.warn(f"left out: {', '.join(untried)} (inferred from the skill's text and not tried, as too many others failed)")
    return pins
