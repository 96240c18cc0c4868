"""Grid of the slides of a deck."""
import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw
from pptx import Presentation


def to_images(deck: Path, folder: Path) -> list[Path]:
    subprocess.run(
        [
            "soffice",
            "--headless",
            "--convert-to",
            "pdf",
            "--outdir",
            str(folder),
            str(deck),
        ],
        check=True,
    )
    pdf = folder / f"{deck.stem}.pdf"
    subprocess.run(["pdftoppm", "-jpeg", str(pdf), str(folder / "slide")], check=True)
    return sorted(folder.glob("slide-*.jpg"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("deck", type=Path)
    parser.add_argument("--cols", type=int, default=4)
    args = parser.parse_args()
    print(len(Presentation(args.deck).slides), "slides")
    with tempfile.TemporaryDirectory() as folder:
        images = [Image.open(path) for path in to_images(args.deck, Path(folder))]
        width, height = images[0].size
        grid = Image.new("RGB", (width * args.cols, height * (1 + len(images) // args.cols)))
        for index, image in enumerate(images):
            grid.paste(image, (index % args.cols * width, index // args.cols * height))
        ImageDraw.Draw(grid).text((4, 4), args.deck.name)
        grid.save("thumbnails.jpg")


if __name__ == "__main__":
    main()
