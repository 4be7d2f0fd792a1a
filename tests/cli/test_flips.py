"""A changed byte, or a lost, doubled or exchanged line of any file is noticed, or changes no figure."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic import saved, trial
from zbench.analysis.sources import load_results, save_baseline
from zbench.errors import UsageError
from zbench.record.checking import checked
from zbench.record.documents import replace_durably, sealed
from zbench.record.store import SEARCH, RunDirectory, load_environment, load_records
from zbench.record.tags import load_tags, save_tag
from zbench.report.html.content import importance_in
from zbench.report.site.store import Site

WITHOUT_DIGEST = {"feed.xml", "badge.json", ".lock"}  # publish makes the first two anew; none is read


@pytest.fixture
def files(zbench: Callable[..., Any]) -> list[Path]:
    """Return every file with a digest or checksums: of two runs, tags, a baseline and a site."""
    for number in (1, 2):
        items = [saved(item) for item in trial([0.1 + number / 1000 + n / 100 for n in range(4)])]
        about = {"spec": {"name": "ex"}, "environment": {"started": "x"}}
        with RunDirectory.create(Path("results"), "ex", **about) as run:
            for item in items:
                run.append(replace(item, run_id=run.path.name))
    replace_durably(run.path / SEARCH, sealed({"schema_version": 1, "importance": {"zero_stage": 0.75}}))
    save_tag(Path("results"), "first", f"ex/{run.path.name}")
    save_baseline("main", load_results("last", Path("results")), Path("results"))
    assert zbench("publish", "--to", "site").code == 0
    paths = [*Path("results").rglob("*"), *Path("site").rglob("*")]
    whole = [path for path in sorted(paths) if path.is_file() and path.stat().st_size > 0]
    return [path for path in whole if path.name not in WITHOUT_DIGEST]


def figures() -> list[object]:
    """Return all that is read from the files; UsageError where one is refused."""
    results = Path("results")
    site = Site(Path("site"))
    try:
        published = list(site.kept())
    finally:
        site.close()
    for file in checked(Path("site")):
        if file.problem is not None:
            raise UsageError(file.problem)
    runs = sorted(results.glob("ex/*"))
    parts = [(load_environment(run), load_records(run), importance_in(run)) for run in runs]
    return [parts, load_tags(results), load_results("main", results).trials, published]


def is_silent(file: Path, data: bytes, whole: list[object]) -> bool:
    """Whether nothing is refused, though other figures are read from changed files."""
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        return figures() != whole
    except UsageError:
        return False
    finally:
        file.write_bytes(before)


Change = Callable[[random.Random, bytes], tuple[bytes, str]]
"""Returns changed data, and what was changed."""


def silent_changes(files: list[Path], times: int, change: Change) -> list[str]:
    """Return the changes of the files, in turn, that are silent."""
    whole = figures()
    rng = random.Random(0)
    silent = list[str]()
    for number in range(times):
        file = files[number % len(files)]
        data, kind = change(rng, file.read_bytes())
        if is_silent(file, data, whole):
            silent.append(f"{file}: {kind}")
    return silent


def flipped(rng: random.Random, before: bytes) -> tuple[bytes, str]:
    data = bytearray(before)
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data), f"bit {bit}"


def with_other_lines(rng: random.Random, before: bytes) -> tuple[bytes, str]:
    lines = before.splitlines(keepends=True)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.choice(("lost", "doubled", "exchanged")):
        case "lost":
            del lines[one]
        case "doubled":
            lines.insert(other, lines[one])
        case _:
            lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines), f"lines {one}, {other}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flips", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_flipped_bit_of_any_file_changes_no_figure(files: list[Path], flips: int) -> None:
    assert silent_changes(files, flips, flipped) == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("times", [30, pytest.param(500, marks=pytest.mark.soak)])
def test_lines_lost_doubled_or_exchanged_change_no_figure(files: list[Path], times: int) -> None:
    assert silent_changes(files, times, with_other_lines) == []
