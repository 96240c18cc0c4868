#!/usr/bin/env python3
import sys
from pathlib import Path

TEMPLATE = """---
name: {name}
description: TODO
---

```bash
mytool --convert {name}
```
"""

EXAMPLE = '''#!/usr/bin/env python3
import example_library

subprocess.run(["exampletool", "--version"])
'''

if __name__ == "__main__":
    name, path = sys.argv[1], sys.argv[3]
    folder = Path(path) / name
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(TEMPLATE.format(name=name))
    (folder / "scripts" / "example.py").write_text(EXAMPLE)
