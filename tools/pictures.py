"""The documentation's pictures, made of stored runs by a browser.

    python -m tools.pictures RESULTS [--out docs/pictures]

RESULTS holds runs of `zbench sweep quickstart`. Writes report.png (the newest run's report, at its top) and
site.png (the page of all runs): what a reader sees first, in few colours, so that the files are small.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
SIZES = {"report": (1100, 1000), "site": (1100, 760)}
COLOURS = 48


def shoot(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Write the top of a page as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no Chromium or Chrome is installed; install one")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--disable-gpu",
        "--virtual-time-budget=1000",
    ]
    window = f"--window-size={size[0]},{size[1]}"
    subprocess.run(
        [browser, *flags, window, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True
    )
    with Image.open(picture) as image:
        image.convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description="Make the documentation's pictures.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        zbench = [sys.executable, "-m", "zbench.cli.main"]
        pages = {"report": place / "report.html", "site": place / "site" / "index.html"}
        words = ["report", "last", "-o", str(given.results), "--html", str(pages["report"])]
        subprocess.run([*zbench, *words], check=True)
        subprocess.run([*zbench, "publish", str(given.results), "--to", str(place / "site")], check=True)
        for name, page in pages.items():
            shoot(page, given.out / f"{name}.png", SIZES[name])


if __name__ == "__main__":
    main()
