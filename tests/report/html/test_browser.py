"""The page in a real browser: it draws, runs nothing, fits a phone, and turns dark when asked to."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.launch.processes import until
from zbench.report.html import style
from zbench.report.html.page import render

from .samples import full, hostile

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--disable-background-networking", "--virtual-time-budget=1000")  # fmt: skip

WIDTHS = (390, 1200)
MEASURE = """
<script>
const found = {width: innerWidth, needed: document.documentElement.scrollWidth, outside: []};
found.ground = getComputedStyle(document.body).backgroundColor;
const verdict = document.querySelector('td.word').getBoundingClientRect();
found.verdict = verdict.left >= 0 && verdict.right <= innerWidth;
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
parent.document.body.setAttribute('data-of-' + innerWidth, JSON.stringify(found));
</script>
"""


def browse(tmp_path: Path, *arguments: str) -> str:
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


class Keyboard:
    """A page in a browser under its own policy, used by keys: Chromium's protocol over a pipe."""

    def __init__(self, page: Path, profile: Path) -> None:
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        flags = [flag for flag in FLAGS if "virtual-time" not in flag]
        started = [str(BROWSER), *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        redirected = f'exec "$@" 3<&{reads} 4>&{writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", *started], pass_fds=(reads, writes), stderr=subprocess.DEVNULL
        )
        os.close(reads)
        os.close(writes)
        self._number, self._session, self._answers = 0, "", b""
        target = self._call("Target.createTarget", url=page.as_uri())["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        loaded = f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'"
        until(lambda: bool(self.value(loaded)), "the page is loaded", seconds=120)

    def __enter__(self) -> "Keyboard":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._answers:
                more = os.read(self._from, 1 << 16)
                assert more, "the browser has ended"
                self._answers += more
            answer, _, self._answers = self._answers.partition(b"\0")
            if json.loads(answer).get("id") == self._number:
                return dict(json.loads(answer)["result"])

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text,
                       windowsVirtualKeyCode=code)  # fmt: skip

    def tab_to(self, selector: str) -> None:
        """Press Tab until what this selector means has the focus, and check that this can be seen."""
        for _ in range(200):
            self.press("Tab", 9)
            if self.value(f"document.activeElement.matches({json.dumps(selector)})"):
                assert self.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"Tab does not lead to {selector}")

    def enter(self) -> None:
        """Press Enter."""
        self.press("Enter", 13, "\r")

    def type(self, text: str) -> None:
        """Type text."""
        self._call("Input.insertText", text=text)

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript is on the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get(
            "value"
        )


@pytest.mark.check
def test_regions_and_tables_are_reached_and_opened_by_keys(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render(full()), encoding="utf-8")
    with Keyboard(tmp_path / "page.html", tmp_path / "profile") as page:
        page.tab_to(".scroll")
        page.tab_to("summary")
        assert not page.value("document.activeElement.parentNode.open")
        page.enter()
        assert page.value("document.activeElement.parentNode.open")


def measured(
    tmp_path: Path, html: str, widths: Sequence[int], *, dark: bool = False
) -> dict[int, dict[str, object]]:
    """Return what a script, let in for the test alone, sees of the page in frames of these widths."""
    open_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    framed = escape(open_policy.replace("</body>", MEASURE + "</body>"))
    page = tmp_path / "measured.html"
    frames = [
        f'<iframe srcdoc="{framed}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        for width in widths
    ]
    scheme = '<meta name="color-scheme" content="light dark">'
    page.write_text(f"<!doctype html>{scheme}<title>none</title>{''.join(frames)}", encoding="utf-8")
    preferred = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    dom = browse(tmp_path, preferred, "--window-size=1400,1000", "--dump-dom", page.as_uri())
    return {
        width: dict(json.loads(unescape(match[1])))
        for width in widths
        if (match := re.search(f'data-of-{width}="([^"]*)"', dom))
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, object]]:
    return measured(tmp_path_factory.mktemp("measured"), render(full()), WIDTHS)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_no_text_covers_another(seen: dict[int, dict[str, object]], width: int) -> None:
    view = seen[width]
    assert view["width"] == width
    assert view["needed"] == width, "nothing makes the page itself scroll sideways"
    assert view["outside"] == []
    assert view["verdict"], "a verdict is seen without scrolling"
    assert view["overlapping"] == []
    assert int(str(view["shown"])) > 40
    assert view["loaded"] == 0


@pytest.mark.check
@pytest.mark.parametrize(("dark", "colours"), [(False, style.LIGHT), (True, style.DARK)])
def test_light_and_dark(tmp_path: Path, dark: bool, colours: dict[str, str]) -> None:
    ground = measured(tmp_path, render(full()), [420], dark=dark)[420]["ground"]
    assert ground == f"rgb{tuple(bytes.fromhex(colours['page'].removeprefix('#')))}"


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
