"""Revisions to install, a cache of their own, and the directory that tests run in."""

from contextlib import suppress
from pathlib import Path

import pytest

with suppress(ImportError):  # once a process has looked for pip, setuptools can no longer be imported there
    import setuptools  # noqa: F401

from .repositories import BACKEND, PROJECT, commit, git, sweep_document


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    (path / "zbench" / "cli").mkdir(parents=True)
    for file in ("zbench/__init__.py", "zbench/cli/__init__.py"):
        (path / file).touch()
    (path / "backend.py").write_text(BACKEND)
    (path / "pyproject.toml").write_text(PROJECT)
    git(path, "init", "-q", "-b", "main")
    commit(path, "v1", sweep_document(0.1))
    commit(path, "v2", sweep_document(0.2))
    commit(path, "silent", "", code=70)
    commit(path, "refusing", {"trials": [], "error": {"message": "unknown key engine.x"}}, code=2)
    (path / "backend.py").write_text(
        "def build_wheel(*_):\n    raise RuntimeError('the compiler is on fire')\n"
    )
    commit(path, "broken", {})
    (path / "backend.py").write_text(BACKEND)
    git(path, "add", "backend.py")
    git(path, "rm", "-q", "-r", "--cached", "zbench/cli")
    git(path, "commit", "-q", "-m", "nocli")
    git(path, "tag", "nocli")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _here(repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
