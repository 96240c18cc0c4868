import json
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Field:
    name: str
    type: str
    value: str = ""


def load_fields(path: Path) -> list[Field]:
    return [Field(**d) for d in json.loads(path.read_text())]
