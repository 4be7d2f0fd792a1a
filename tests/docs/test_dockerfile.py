"""The Dockerfile, without Docker: what it copies is there, and its command is one of zbench."""

import fnmatch
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

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
