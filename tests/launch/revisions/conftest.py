"""A small git repository whose every revision is a package named zbench that prints a document.

The revisions have a cache of their own, and tests run in the repository.
"""

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

with suppress(ImportError):  # once a process has looked for pip, setuptools can no longer be imported there
    import setuptools  # noqa: F401

from tests.analysis.synthetic import saved, trial
from zbench.record import lines

BACKEND = '''
"""A build backend without requirements: zips the package, so that no test needs a network."""
import pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "zbench-0.0.0-py3-none-any.whl"
    info = "zbench-0.0.0.dist-info/"
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        for file in pathlib.Path("zbench").rglob("*.py"):
            wheel.write(file)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: zbench\\nVersion: 0.0.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
'''
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "zbench"
version = "0.0.0"
"""
COMMAND = """
import sys

if __name__ == "__main__":
    print({document!r})
    sys.exit({code})
"""


def make_their_project(path: Path) -> None:
    """Make `path` a project whose package is the module `their_model`."""
    backend = BACKEND.replace('Path("zbench").rglob("*.py")', 'Path().glob("their_model.py")')
    backend = backend.replace("zbench-", "theirs-").replace("Name: zbench", "Name: theirs")
    (path / "backend.py").write_text(backend)
    (path / "pyproject.toml").write_text(PROJECT.replace('"zbench"', '"theirs"'))


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.strip()


def commit(repository: Path, tag: str, document: object, code: int = 0) -> None:
    """Commit a zbench whose every command prints `document`."""
    text = document if isinstance(document, str) else json.dumps(document)
    (repository / "zbench" / "cli" / "main.py").write_text(COMMAND.format(document=text, code=code))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", tag)
    git(repository, "tag", tag)


def sweep_document(step_s: float) -> dict[str, object]:
    return {"schema_version": 1, "trials": [lines.jsonable(saved(item)) for item in trial([step_s])]}


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
