"""The documentation site builds with strict links, and its generated pages name every command and key."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.cli.main import COMMANDS
from zbench.spec.keys import known_paths

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    pytest.importorskip("material", reason="the site needs the extra `docs`")
    pytest.importorskip("jsonschema2md", reason="the site needs the extra `docs`")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


def test_every_command_and_key_has_its_entry(site: Path) -> None:
    commands, keys = ((site / page).read_text() for page in ("commands.html", "keys.html"))
    for name in COMMANDS:
        assert f"zbench {name}" in commands
    for path in known_paths():
        section, *rest = path
        if section in ("workload", "run", "engine") and len(rest) <= 2:
            assert f"<code>{rest[-1]}</code>" in keys, path


def test_every_page_has_a_name_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text()
    assert "Two stored runs of one version" in index
    assert not re.search(r">\s*A a\s*<", index)
    linked = set(re.findall(r'href="([\w./-]+\.html)', index))
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f"{page.stem}.html" in linked


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert loaded == [], page.name
