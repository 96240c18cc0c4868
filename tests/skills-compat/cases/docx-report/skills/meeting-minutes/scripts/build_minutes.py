#!/usr/bin/env python3
"""Writes the minutes of a meeting: build_minutes.py NOTES.json MINUTES.docx."""

import json
import sys
from pathlib import Path

from docx import Document
from docx.enum.text import WD_ALIGN_PARAGRAPH
from docx.shared import Cm, Pt


def add_actions(document, actions):
    table = document.add_table(rows=1, cols=3, style="Table Grid")
    for cell, text in zip(table.rows[0].cells, ("Who", "What", "Due")):
        cell.paragraphs[0].add_run(text).bold = True
    for action in actions:
        for cell, key in zip(table.add_row().cells, ("who", "what", "due")):
            cell.text = action[key]


def main():
    notes = json.loads(Path(sys.argv[1]).read_text())
    document = Document()
    document.core_properties.title = notes["title"]
    document.core_properties.author = "meeting-minutes"
    section = document.sections[0]
    section.page_width, section.page_height = Cm(21), Cm(29.7)
    section.footer.paragraphs[0].text = f"Minutes of {notes['date']}"
    section.footer.paragraphs[0].alignment = WD_ALIGN_PARAGRAPH.CENTER
    document.styles["Normal"].font.size = Pt(11)
    document.add_heading(notes["title"], level=0)
    document.add_paragraph(f"Present: {', '.join(notes['present'])}")
    for point in notes["points"]:
        document.add_heading(point["heading"], level=1)
        document.add_paragraph(point["text"])
    document.add_heading("Actions", level=1)
    add_actions(document, notes["actions"])
    document.save(sys.argv[2])
    print(f"{len(notes['points'])} points, {len(notes['actions'])} actions")


if __name__ == "__main__":
    main()
