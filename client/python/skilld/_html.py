"""HTML of results for notebooks. Every text from a sandbox is escaped; images are inline, and nothing is fetched."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Iterable, List, Mapping

if TYPE_CHECKING:
    from .results import CommandResult, OutputFile

TEXT_MAX = 20_000
"""Maximum number of characters of one text."""
TABLE_ROWS_MAX = 50
IMAGE_BYTES_MAX = 5 << 20
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_PRE = "margin:0;white-space:pre-wrap;max-height:30em;overflow:auto"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")


def _escape(text: Any) -> str:
    import html

    return html.escape(str(text))


def _pre(text: str, style: str = "") -> str:
    text = _ESCAPES.sub("", text)
    cut = f"\n… {len(text) - TEXT_MAX:,} more characters" if len(text) > TEXT_MAX else ""
    return f'<pre style="{_PRE};{style}">{_escape(text[:TEXT_MAX] + cut)}</pre>'


def html_table(heads: Iterable[str], rows: List[List[Any]]) -> str:
    """Returns a table."""
    head = "".join(f"<th>{_escape(cell)}</th>" for cell in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_escape('' if cell is None else cell)}</td>" for cell in row) + "</tr>"
        for row in rows[:TABLE_ROWS_MAX]
    )
    more = f"<p>{len(rows) - TABLE_ROWS_MAX:,} more rows</p>" if len(rows) > TABLE_ROWS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _csv(file: "OutputFile") -> str:
    import csv
    import io

    delimiter = "\t" if file.path.endswith(".tsv") else ","
    try:
        rows = list(csv.reader(io.StringIO(file.text(errors="replace")), delimiter=delimiter))
    except csv.Error:
        return _pre(file.text(errors="replace"))
    return html_table(rows[0], rows[1:]) if rows else ""


def html_file(file: "OutputFile") -> str:
    """Returns a file: an image or a table as such, the beginning of a text, the size of anything else."""
    head = f"<div><b>{_escape(file.path)}</b> {file.size:,} bytes, {_escape(file.mime_type)}</div>"
    if file.mime_type in _IMAGES and not file.truncated and len(file.data) <= IMAGE_BYTES_MAX:
        import base64

        data = base64.b64encode(file.data).decode()
        return f'{head}<img style="max-width:100%" src="data:{file.mime_type};base64,{data}">'
    if file.path.endswith((".csv", ".tsv")):
        return head + _csv(file)
    if file.mime_type.startswith("text/") or file.mime_type == "application/json":
        return head + _pre(file.text(errors="replace"))
    return head


def html_run(run: "CommandResult", files: Mapping[str, "OutputFile"]) -> str:
    """Returns the result of a run with its output, warnings and files."""
    color = "#2a7d2a" if run.success else "#b00020"
    time = f", {run.duration:.2f} s" if run.duration is not None else ""
    error = f": {_escape(run.error)}" if run.error else ""
    parts = [f'<div style="color:{color}"><b>exit code {run.exit_code}</b>{error}{time}</div>']
    parts += [_pre(run.stdout)] if run.stdout_bytes else []
    parts += [_pre(run.stderr, "color:#b00020")] if run.stderr_bytes else []
    parts += [f"<div>⚠ {_escape(warning)}</div>" for warning in getattr(run, "warnings", [])]
    parts += [html_file(file) for file in files.values()]
    return "<div>" + "".join(parts) + "</div>"
