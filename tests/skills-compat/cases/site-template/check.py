"""Checks the site."""

import sys
from pathlib import Path

site = Path(sys.argv[1], "out/site")
files = sorted(str(path.relative_to(site)) for path in site.rglob("*") if path.is_file())
if files != ["css/site.css", "img/.keep", "index.html", "settings.ini"]:
    sys.exit(f"out/site has other files: {files}")
page = (site / "index.html").read_text()
for part in ["<title>Open day</title>", "<h1>Open day</h1>", "<p class=\"date\">4 July</p>", "<p>Come &amp; see the garden.</p>"]:
    if page.count(part) != 1:
        sys.exit(f"index.html has {part!r} {page.count(part)} times, not once:\n{page}")
style = (site / "css/site.css").read_text()
if style != "body { font-family: sans-serif; }\nh1 { color: #0f766e; }\n":
    sys.exit(f"site.css has other text: {style!r}")
settings = (site / "settings.ini").read_text()
if settings != "[site]\nlanguage = en\ncolour = teal\n":
    sys.exit(f"settings.ini has other text: {settings!r}")
print("ok: the copied template was edited, appended to and pruned")
