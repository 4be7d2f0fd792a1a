"""The Dockerfile, without Docker: what it copies is there, and its commands run, one by one (soak)."""

import fnmatch
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.calling import run

ROOT = Path(__file__).parents[2]
NEEDED = re.compile(r"\.\./(\w[\w.]*\w)")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions: name and the rest, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def of(kind: str) -> list[str]:
    return [rest for name, rest in instructions() if name == kind]


def ignored(path: str) -> bool:
    """Tell whether .dockerignore keeps a path out of the build context; the last pattern decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = Path(path).parts
        heads = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        names = [*heads, *parts] if "**/" in line else heads
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            out = not line.startswith("!")
    return out


def what_the_build_reads() -> Iterator[str]:
    """Yield the files and folders that pyproject.toml and CMake name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    yield "pyproject.toml"
    yield project["project"]["readme"]
    yield from project["project"]["license-files"]
    yield from project["tool"]["scikit-build"]["wheel"]["packages"]
    source = project["tool"]["scikit-build"]["cmake"]["source-dir"]
    yield source
    yield from NEEDED.findall((ROOT / source / "CMakeLists.txt").read_text())


def test_the_image_copies_what_the_build_reads() -> None:
    ((source, destination),) = [copied.split() for copied in of("COPY")]
    assert source == ".", "the whole context"
    needed = list(what_the_build_reads())
    assert {"README.md", "sweeps", "csrc", "zbench"} <= {*needed}
    for name in needed:
        assert (ROOT / name).exists(), name
        assert not ignored(name), name
        inner = next((path for path in (ROOT / name).rglob("*.*") if path.is_file()), ROOT / name)
        assert not ignored(str(inner.relative_to(ROOT))), inner
    assert ignored("results/quickstart/a/trials.jsonl")
    assert ignored("zbench/cli/__pycache__/main.pyc")
    assert sum(f"pip install --no-cache-dir {destination}" in command for command in of("RUN")) == 1


def test_the_image_s_command_is_one_of_zbench(zbench: Any) -> None:
    (words,) = map(json.loads, of("CMD"))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert words[0] in scripts
    said = zbench("plan", *words[2:])
    assert said.code == 0, said.err


@pytest.fixture
def zbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    return partial(run, capsys)


def way() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whole_way", ROOT / "tools" / "whole_way.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_image_s_commands_run_one_by_one(tmp_path: Path) -> None:
    """Copies the context, installs it in a fresh environment, removes it, and runs CMD in an empty folder."""
    pytest.importorskip("scikit_build_core", reason="the wheel is built without isolation")
    source, results = tmp_path / "src", tmp_path / "results"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if not ignored(name) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, str(source), "-w", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("zbench-*.whl")
    traveller = way().Traveller(tmp_path)
    traveller.install(wheel, shared=True)
    shutil.rmtree(source)
    results.mkdir()
    (words,) = map(json.loads, of("CMD"))
    quick = ["--set", "steps=2", "--repeats", "1"]
    clean = {"PATH": str(traveller.environment / "bin"), "HOME": str(tmp_path)}  # neither git nor a compiler
    program = shutil.which(words[0], path=clean["PATH"])
    assert program is not None
    done = subprocess.run(
        [program, *words[1:], *quick], cwd=results, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "identical" in done.stdout
