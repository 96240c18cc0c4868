#!/usr/bin/env python3
"""Contact sheet of a deck."""
import argparse, subprocess, tempfile
from pathlib import Path

from PIL import Image, ImageDraw
from pptx import Presentation


def run(cmd, **kw):
    print("+", " ".join(map(str, cmd)))
    return subprocess.run(cmd, check=True, capture_output=True, **kw)


def hidden(deck):
    return [i for i, s in enumerate(Presentation(deck).slides, 1)
            if s.element.get("show") == "0"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("deck")
    p.add_argument("--cols", type=int, default=4)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        run(["soffice", "--headless", "--convert-to", "pdf", "--outdir", tmp, a.deck])
        pdf = Path(tmp) / (Path(a.deck).stem + ".pdf")
        run(["pdftoppm", "-jpeg", "-r", "60", pdf, f"{tmp}/s"])
        shots = [Image.open(f) for f in sorted(Path(tmp).glob("s-*.jpg"))]
        w, h = shots[0].size
        rows = -(-len(shots) // a.cols)
        sheet = Image.new("RGB", (w * a.cols, h * rows), "white")
        for i, s in enumerate(shots):
            sheet.paste(s, (i % a.cols * w, i // a.cols * h))
        ImageDraw.Draw(sheet).text((4, 4), f"hidden: {hidden(a.deck)}", fill="red")
        out = Path(a.deck).with_name(Path(a.deck).stem + "-thumbs.jpg")
        sheet.save(out)
        print("wrote", out)


if __name__ == "__main__":
    main()
