"""CONTRIBUTING.md is true: commands exist, `make dev` names a missing part, `make quick` finds near tests."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from tools.quick import nearest_tests

ROOT = Path(__file__).parents[2]
PAGES = ["CONTRIBUTING.md", "AGENTS.md", "README.md", ".github/pull_request_template.md"]
OLD_PYTHON = """#!/bin/sh
case "$2" in *exit*) exit 1;; *version_info*) echo 3.10;; esac
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make (?:[A-Z]+=\S+ )*([a-z]+)", text, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for module in re.findall(r"python -m (tools[\w.]*\w)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
    for program in re.findall(r"\btools/\w+\.(?:py|sh)\b|\btests/[\w/]+\.py\b", text):
        assert (ROOT / program).exists(), program


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the files that tools/ready.sh reads before it builds."""
    (tmp_path / "tools").mkdir()
    for name in ("tools/ready.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def refused(clone: Path, python: str, **variables: str) -> str:
    """Run tools/ready.sh; return its last line, by which it refuses."""
    command = ["bash", "tools/ready.sh", python, ".venv", "test"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(
        command,
        cwd=clone,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    *progress, line = done.stderr.splitlines()
    assert line.startswith("zbench: ")
    assert all(text.startswith("zbench: installing") for text in progress), done.stderr
    return line


def test_an_old_python_is_refused_with_the_remedy(clone: Path) -> None:
    python = clone / "python"
    python.write_text(OLD_PYTHON)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    line = refused(clone, str(python))
    assert f"expected Python 3.11 or newer, {python} is Python 3.10; name another: make PYTHON=" in line
    assert "nopython does not run; install Python 3.11" in refused(clone, "nopython")


def test_a_missing_compiler_is_named_with_the_remedy(clone: Path) -> None:
    line = refused(clone, sys.executable, CXX="no-compiler")
    assert "no compiler of C++20 among no-compiler; install g++ 11 or newer" in line


@pytest.mark.check
def test_without_a_network_one_line_says_so(clone: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    line = refused(clone, sys.executable, **nowhere)
    assert "no package index can be reached; connect to a network, or name a mirror: PIP_INDEX_URL" in line


@pytest.mark.parametrize(
    ("changed", "nearest"),
    [
        ("zbench/analysis/ranking.py", "tests/analysis/test_ranking.py"),
        pytest.param(
            "zbench/engine/gradients/bucket.py", "tests/engine/test_parity.py", marks=pytest.mark.check
        ),
    ],
)
def test_near_tests_of_a_changed_file_are_found(changed: str, nearest: str) -> None:
    found = [str(path.relative_to(ROOT)) for path in nearest_tests([PurePath(changed)])]
    assert nearest in found
    assert len(found) <= 20
