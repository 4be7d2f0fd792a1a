"""The page in a real browser: it draws, runs nothing, fits a phone, and turns dark when asked to."""

import json
import re
import shutil
import struct
import subprocess
import zlib
from html import escape, unescape
from pathlib import Path

import pytest

from zbench.report.html import content
from zbench.report.html.page import render

from .samples import full, hostile

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--disable-background-networking", "--virtual-time-budget=1000")  # fmt: skip

MEASURE = """
<script>
const found = {width: innerWidth, needed: document.documentElement.scrollWidth, outside: []};
const boxes = [];
for (const text of document.querySelectorAll('main > section svg[role=img] text')) {
  const box = text.getBoundingClientRect();
  if (box.width === 0) continue;
  if (box.left < 0 || box.right > innerWidth) found.outside.push(text.textContent);
  boxes.push([text.textContent, box, text.closest('svg[role=img]')]);
}
found.overlapping = [];
for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
  const [a, p, s] = boxes[i], [b, q, t] = boxes[j];
  if (s === t && p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
    found.overlapping.push(a + ' / ' + b);
}
found.shown = boxes.length;
found.loaded = performance.getEntriesByType('resource').length;
parent.document.title = JSON.stringify(found);
</script>
"""


def browse(tmp_path: Path, *arguments: str) -> str:
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def screenshot(tmp_path: Path, page: Path, width: int, *, dark: bool) -> list[tuple[int, int, int]]:
    """Return the pixels of the page's first screen."""
    target = tmp_path / f"{page.stem}-{width}-{dark}.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    browse(tmp_path, scheme, f"--window-size={width},600", f"--screenshot={target}", page.as_uri())
    return pixels(target.read_bytes())


def pixels(png: bytes) -> list[tuple[int, int, int]]:
    """Return the pixels of an 8-bit RGB or RGBA PNG, as the browser writes it."""
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    assert depth == 8
    size = {2: 3, 6: 4}[colour]
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw, stride, found = zlib.decompress(data), width * size, []
    line = bytearray(stride)
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        line = unfiltered(kind, row, line, size)
        found += [tuple(line[x : x + 3]) for x in range(0, stride, size * 7)]
    return found


def unfiltered(kind: int, row: bytearray, above: bytearray, size: int) -> bytearray:
    """Undo one line's PNG filter (RFC 2083, section 6)."""
    for i in range(len(row)):
        left, up = row[i - size] if i >= size else 0, above[i]
        corner = above[i - size] if i >= size else 0
        if kind == 4:
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
        else:
            nearest = (0, left, up, (left + up) // 2)[kind]
        row[i] = (row[i] + nearest) & 255
    return row


def measured(tmp_path: Path, html: str, width: int) -> dict[str, object]:
    """Return what a script, let in for the test alone, sees of the page in a frame of this width."""
    open_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    framed = escape(open_policy.replace("</body>", MEASURE + "</body>"))
    page = tmp_path / f"measured-{width}.html"
    frame = f'<iframe srcdoc="{framed}" style="width: {width}px; height: 900px; border: 0"></iframe>'
    page.write_text(f"<!doctype html><title>none</title>{frame}", encoding="utf-8")
    dom = browse(tmp_path, "--window-size=1400,1000", "--dump-dom", page.as_uri())
    title = re.search(r"<title>(\{.*?\})</title>", dom, flags=re.DOTALL)
    assert title is not None
    return dict(json.loads(unescape(title[1])))


@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_and_no_text_covers_another(tmp_path: Path, width: int) -> None:
    found = measured(tmp_path, render(full()), width)
    assert found["width"] == width
    assert found["needed"] == width, "nothing makes the page itself scroll sideways"
    assert found["outside"] == []
    assert found["overlapping"] == []
    assert int(str(found["shown"])) > 40
    assert found["loaded"] == 0


def test_light_and_dark(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render(full()), encoding="utf-8")
    light, dark = (screenshot(tmp_path, page, 420, dark=dark) for dark in (False, True))

    def brightness(shot: list[tuple[int, int, int]]) -> float:
        return sum(map(sum, shot)) / (3 * len(shot))

    assert brightness(light) > 220
    assert brightness(dark) < 60
    for shot in (light, dark):
        assert len(set(shot)) > 50, "text and marks are drawn"


def test_hostile_text_runs_nothing(tmp_path: Path) -> None:
    """Even without the page's own policy: the escaping alone must hold."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(hostile()))
    page = tmp_path / "hostile.html"
    page.write_text(html, encoding="utf-8")
    dom = browse(tmp_path, "--dump-dom", page.as_uri())
    title = re.search(r"<title>(.*?)</title>", dom, flags=re.DOTALL)
    assert title is not None
    assert unescape(title[1]).startswith("</text>")
    assert "<script" not in dom
    assert "<img" not in dom


def test_pictures_are_drawn_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "scatter.svg"
    path.write_text(content.pictures(full())["throughput-memory"].file(), encoding="utf-8")
    shot = screenshot(tmp_path, path, 860, dark=False)
    assert len(set(shot)) > 20
