"""What is kept of a run is told only while it is true, and then nothing else is read."""

import hashlib
import json
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


@pytest.mark.parametrize(("size", "times"), [(1_000_001, 1), (1_000_000, 3)])
def test_once_they_are_settled_the_content_of_large_files_is_read_no_more(
    run: Path, monkeypatch: pytest.MonkeyPatch, size: int, times: int
) -> None:
    others = sum((run / name).stat().st_size for name in (SPEC, ENVIRONMENT))
    (run / TRIALS).write_bytes(b" " * (size - others))
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


def test_what_is_no_number_is_not_kept(run: Path) -> None:
    KeptOverview(run).keep(replace(FOUND, best_tokens_per_s=float("nan")))
    assert not (run / KEPT).exists()


def rewritten(run: Path, change: Callable[[bytes], bytes]) -> Overview | None:
    """Return what is read where a kept overview was changed, and its checksum with it."""
    KeptOverview(run).keep(FOUND)
    body = change((run / KEPT).read_bytes().partition(b"\n")[2])
    (run / KEPT).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    return KeptOverview(run).load()


@pytest.mark.parametrize("number", [b"1000.5", b"0.25"], ids=["of the best", "of the ranking"])
def test_an_overview_with_a_figure_that_is_no_number_is_none(run: Path, number: bytes) -> None:
    assert rewritten(run, lambda body: body) == FOUND
    assert rewritten(run, lambda body: body.replace(number, b"NaN")) is None


@pytest.mark.parametrize(("over", "found"), [(0, FOUND), (1, None)])
def test_a_file_beyond_16_mib_is_not_read_as_a_whole(run: Path, over: int, found: Overview | None) -> None:
    checksum = 65
    assert rewritten(run, lambda body: body.ljust((16 << 20) - checksum + over)) == found


@pytest.mark.parametrize(("waited", "is_settled"), [(2_000_000_000, False), (2_000_000_001, True)])
def test_files_are_settled_when_more_than_two_seconds_have_passed(
    run: Path, monkeypatch: pytest.MonkeyPatch, waited: int, is_settled: bool
) -> None:
    monkeypatch.undo()
    states = [(run / name).stat() for name in (SPEC, ENVIRONMENT, TRIALS)]
    changed = max(max(one.st_mtime_ns, one.st_ctime_ns) for one in states)
    monkeypatch.setattr(time, "time_ns", lambda: changed + waited)
    KeptOverview(run).keep(FOUND)
    kept = json.loads((run / KEPT).read_bytes().partition(b"\n")[2])
    assert (kept["content"] == "") == is_settled, "a checksum of the content only where it is needed"


def test_a_directory_without_all_files_of_a_run_keeps_nothing(run: Path) -> None:
    (run / TRIALS).unlink()
    assert KeptOverview(run).keep(FOUND) == FOUND
    assert not (run / KEPT).exists()


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
