import re
import yaml


def validate(folder):
    text = (folder / "SKILL.md").read_text()
    front = yaml.safe_load(re.match(r"^---\n(.*?)\n---", text, re.DOTALL).group(1))
    assert {"name", "description"} <= set(front)
