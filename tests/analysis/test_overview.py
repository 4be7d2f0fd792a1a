"""What is kept of a run is told only while it is true, and then nothing else is read."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.synthetic import BASE_ID, record, trial, write_run
from zbench.analysis import overview as subject
from zbench.analysis.overview import KEPT, KeptOverview, Overview, overview_at, overview_of
from zbench.analysis.ranking import Ranking
from zbench.record.store import ENVIRONMENT, SPEC, TRIALS
from zbench.record.summary import summarize

LEADERS = Ranking("a", ("a",), "a", {"b": 0.25}, None)
FOUND = Overview("2026-01-31T10:00:00Z", "f00d", 2, 1, 0, {"zero_stage": 1}, 1000.5, LEADERS)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run directory whose files were last changed long before now."""
    for name in (SPEC, ENVIRONMENT, TRIALS):
        (tmp_path / name).write_text("some text\n")
    monkeypatch.setattr(subject, "_SETTLED_NS", -1)
    return tmp_path


def test_an_overview_is_read_back_as_it_was(run: Path) -> None:
    assert KeptOverview(run).load() is None
    KeptOverview(run).keep(FOUND)
    assert KeptOverview(run).load() == FOUND
    assert sorted(path.name for path in run.iterdir()) == sorted([KEPT, SPEC, ENVIRONMENT, TRIALS])


def _append(run: Path) -> None:
    with (run / TRIALS).open("a") as file:
        file.write("more\n")


def _same_size(run: Path) -> None:
    (run / TRIALS).write_text("SOME text\n")


def _same_size_and_time(run: Path) -> None:
    before = (run / TRIALS).stat()
    (run / TRIALS).write_text("SOME text\n")
    os.utime(run / TRIALS, ns=(before.st_atime_ns, before.st_mtime_ns))


def _other_file(run: Path) -> None:
    (run / "other").write_text("SOME text\n")
    (run / "other").replace(run / SPEC)


@pytest.mark.parametrize("change", [_append, _same_size, _same_size_and_time, _other_file])
def test_a_changed_file_ends_it(run: Path, change: Callable[[Path], None]) -> None:
    KeptOverview(run).keep(FOUND)
    time.sleep(0.02)  # longer than the clock of a file system takes to move on
    change(run)
    assert KeptOverview(run).load() is None


def test_what_changed_while_it_was_read_is_not_kept(run: Path) -> None:
    kept = KeptOverview(run)
    _append(run)
    assert kept.keep(FOUND) == FOUND
    assert not (run / KEPT).exists()


def test_of_a_run_that_was_just_written_the_content_counts(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may show two changes at one time; without the content such a change was not seen."""
    monkeypatch.setattr(subject, "_SETTLED_NS", 3_600_000_000_000)
    same = [[1, 2, time.time_ns(), time.time_ns()]]
    monkeypatch.setattr(subject, "_state", lambda run: same)
    KeptOverview(run).keep(FOUND)
    assert KeptOverview(run).load() == FOUND
    _same_size(run)
    assert KeptOverview(run).load() is None


@pytest.mark.parametrize(("much", "times"), [(0, 1), (1 << 20, 3)])
def test_once_they_are_settled_the_content_of_large_files_is_read_no_more(
    run: Path, monkeypatch: pytest.MonkeyPatch, much: int, times: int
) -> None:
    monkeypatch.setattr(subject, "_MUCH", much)
    monkeypatch.setattr(subject, "_SETTLED_NS", 3_600_000_000_000)
    KeptOverview(run).keep(FOUND)
    monkeypatch.setattr(subject, "_SETTLED_NS", -1)
    read: list[Path] = []
    real = subject._content
    monkeypatch.setattr(subject, "_content", lambda run: read.append(run) or real(run))
    assert [KeptOverview(run).load() for _ in range(3)] == [FOUND] * 3
    assert read == [run] * times


def test_other_code_reads_the_run_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptOverview(run).keep(FOUND)
    monkeypatch.setattr(subject, "_code", lambda: "another version")
    assert KeptOverview(run).load() is None


def test_a_damaged_or_foreign_file_is_no_overview(run: Path) -> None:
    KeptOverview(run).keep(FOUND)
    whole = (run / KEPT).read_bytes()
    for position in range(0, len(whole), 7):
        (run / KEPT).write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        assert KeptOverview(run).load() is None, position
        (run / KEPT).write_bytes(whole[:position])
        assert KeptOverview(run).load() is None, position
    KeptOverview(run).keep(replace(FOUND, configurations="many"))  # type: ignore[arg-type]
    assert KeptOverview(run).load() is None
    KeptOverview(run).keep(replace(FOUND, best_tokens_per_s=float("nan")))
    assert KeptOverview(run).load() is None


@pytest.mark.parametrize("wrong", ["1", True, 1.5, None], ids=repr)
def test_an_overview_of_other_types_is_none(run: Path, wrong: Any) -> None:
    KeptOverview(run).keep(replace(FOUND, configurations=wrong))
    assert (run / KEPT).is_file()
    assert KeptOverview(run).load() is None


def test_a_directory_that_cannot_be_written_is_no_failure(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_bytes", refused)
    assert KeptOverview(run).keep(FOUND) == FOUND


RECORDS = [
    *trial([0.1] * 3, axes={"zero_stage": 0}),
    *trial([0.2] * 3, axes={"zero_stage": 1}),
    *trial([0.05] * 3, axes={"zero_stage": 2}, verdict="wrong"),
    record(axes={"zero_stage": 3}, outcome="crashed"),
]


def test_a_run_in_a_few_figures(tmp_path: Path) -> None:
    run = tmp_path / "example" / BASE_ID
    write_run(run, RECORDS)
    found = overview_at(run)
    assert (found.started, found.machine) == ("2026-01-01T00:00:00+0000", "f00d")
    assert (found.configurations, found.failed, found.incorrect) == (4, 1, 1)
    assert found.best_axes == {"zero_stage": 0}
    assert found.best_tokens_per_s == pytest.approx(1000 / 0.1)
    assert found.ranking.recommended == RECORDS[0].trial_id
    assert (run / KEPT).is_file()
    assert KeptOverview(run).load() == found


def test_a_run_without_a_best_or_an_environment_has_no_figures_of_them() -> None:
    nobody = Ranking(None, (), None, {}, None)
    found = overview_of({}, summarize(RECORDS[-1:]), nobody)
    assert found == Overview(None, None, 1, 1, 0, None, None, nobody)
