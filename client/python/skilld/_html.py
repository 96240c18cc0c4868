"""HTML of results for notebooks. Every text from a sandbox is escaped; images are inline, and nothing is fetched."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, List, Mapping

if TYPE_CHECKING:
    from .results import CommandResult, OutputFile

TEXT_MAX = 20_000
"""Maximum number of characters of one text or table. The rest is not even read."""
TABLE_ROWS_MAX = 50
TABLE_COLUMNS_MAX = 50
IMAGE_BYTES_MAX = 5 << 20
"""Maximum size of the images of one result together, in bytes."""
FILES_MAX = 50
"""Maximum number of files of one result."""
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_PRE = "margin:0;white-space:pre-wrap;max-height:30em;overflow:auto"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.?")


def _escape(text: Any) -> str:
    import html

    return html.escape(str(text))


def _beginning(data: bytes) -> str:
    """Returns the beginning of a text, without the control sequences of terminals."""
    return _ESCAPES.sub("", data[: 4 * TEXT_MAX].decode("utf-8", "replace")[:TEXT_MAX])


def _pre(data: bytes, style: str = "") -> str:
    text = _beginning(data)
    cut = f"\n… {len(data):,} bytes in all" if len(data) > TEXT_MAX else ""
    return f'<pre style="{_PRE};{style}">{_escape(text + cut)}</pre>'


def html_table(heads: List[Any], rows: List[List[Any]]) -> str:
    """Returns a table."""
    head = "".join(f"<th>{_escape(cell)}</th>" for cell in heads[:TABLE_COLUMNS_MAX])
    body = ""
    for row in rows[:TABLE_ROWS_MAX]:
        cells = ["" if cell is None else _escape(cell) for cell in row[:TABLE_COLUMNS_MAX]]
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    more = "<p>… more rows</p>" if len(rows) > TABLE_ROWS_MAX else ""
    more += "<p>… more columns</p>" if len(heads) > TABLE_COLUMNS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _csv(file: "OutputFile") -> str:
    import csv

    lines = _beginning(file.data).splitlines(keepends=True)
    if len(file.data) > TEXT_MAX:
        # The last line is cut.
        lines = lines[:-1]
    try:
        rows = list(csv.reader(lines, delimiter="\t" if file.path.endswith(".tsv") else ","))
    except csv.Error:
        rows = []
    return html_table(rows[0], rows[1:]) if rows else _pre(file.data)


def html_file(file: "OutputFile", image_bytes: int = IMAGE_BYTES_MAX) -> str:
    """Returns a file: an image of so many bytes or a table as such, the beginning of a text, the size of others."""
    head = f"<div><b>{_escape(file.path)}</b> {file.size:,} bytes, {_escape(file.mime_type)}</div>"
    if _is_image(file) and not file.truncated and len(file.data) <= image_bytes:
        import base64

        data = base64.b64encode(file.data).decode()
        return f'{head}<img style="max-width:100%" src="data:{file.mime_type};base64,{data}">'
    if file.path.endswith((".csv", ".tsv")):
        return head + _csv(file)
    if file.mime_type.startswith("text/") or file.mime_type == "application/json":
        return head + _pre(file.data)
    return head


def _is_image(file: "OutputFile") -> bool:
    return file.mime_type in _IMAGES


def html_run(run: "CommandResult", files: Mapping[str, "OutputFile"]) -> str:
    """Returns the result of a run with its output, warnings and files."""
    color = "#2a7d2a" if run.success else "#b00020"
    time = f", {run.duration:.2f} s" if run.duration is not None else ""
    error = f": {_escape(run.error)}" if run.error else ""
    parts = [f'<div style="color:{color}"><b>exit code {run.exit_code}</b>{error}{time}</div>']
    parts += [_pre(run.stdout_bytes)] if run.stdout_bytes else []
    parts += [_pre(run.stderr_bytes, "color:#b00020")] if run.stderr_bytes else []
    parts += [f"<div>⚠ {_escape(warning)}</div>" for warning in getattr(run, "warnings", [])]
    room = IMAGE_BYTES_MAX
    for file in list(files.values())[:FILES_MAX]:
        parts.append(html_file(file, room))
        room -= len(file.data) if _is_image(file) and len(file.data) <= room else 0
    parts += [f"<div>… {len(files) - FILES_MAX:,} more files</div>"] if len(files) > FILES_MAX else []
    return "<div>" + "".join(parts) + "</div>"
