"""A search from start to finish with a runner that measures nothing."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.shared_processes import SharedProcesses
from zbench.analysis.ranking import by_figure
from zbench.errors import UsageError
from zbench.launch.events import SweepStarted, TrialFinished, Watch
from zbench.record.record import Failure, Record
from zbench.record.store import RunDirectory, load_records
from zbench.record.summary import summarize
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.report import search_document
from zbench.tune.session import SearchOutcome, SearchTask, Session
from zbench.tune.storage import JOURNAL, StudyStorageError

from .fakes import Ear, FakeRunner, small_sweep

FACTS = {"fingerprint": "kind"}


def create(home: Path, sweep: SweepSpec) -> RunDirectory:
    return RunDirectory.create(home, sweep.name, spec=sweep_document(sweep), environment=FACTS)


def run(
    directory: RunDirectory, sweep: SweepSpec, runner: FakeRunner | None = None, **task: Any
) -> tuple[SearchOutcome, Ear]:
    ear = Ear()
    with directory:
        found = Session(
            SearchTask(sweep, directory.path, FACTS, **task), directory, runner or FakeRunner(), ear
        ).run()
    return found, ear


def ran(path: Path) -> list[Record]:
    """Return the records of what was run."""
    return [record for record in load_records(path) if record.outcome != "invalid"]


def test_every_finished_trial_is_in_the_run_directory_and_was_told(tmp_path: Path) -> None:
    sweep = small_sweep(search={"trials": 8, "patience": 99, "method": "tpe"})
    runner = FakeRunner()
    directory = create(tmp_path, sweep)
    began = time.monotonic()
    found, ear = run(directory, sweep, runner)
    assert 0 < sum(event.seconds for event in ear.of(TrialFinished)) <= time.monotonic() - began
    records = ran(directory.path)
    assert {(r.trial_id, r.repeat) for r in records} == set(runner.began)
    assert len([r for r in records if r.repeat == 0]) == 8
    assert all(record.run_id == directory.run_id for record in records)
    assert [event.record for event in ear.of(TrialFinished)] == records
    assert ear.of(SweepStarted)[0].repeats == 8
    assert found.stopped == "the budget of 8 trials is spent"


def test_the_announced_best_is_the_one_that_every_table_marks(tmp_path: Path) -> None:
    sweep = small_sweep()
    directory = create(tmp_path, sweep)
    found, _ = run(directory, sweep)
    marked = by_figure(summarize(ran(directory.path)), sweep.objective)[0]
    assert found.final.best is not None
    assert marked is not None
    assert found.final.best.trial_id == marked.trial_id
    assert {record.repeat for record in marked.records} == {0, 1, 2}
    assert found.final.runner_up is not None


def test_a_session_cut_off_anywhere_resumes_to_the_same_end(tmp_path: Path) -> None:
    sweep = small_sweep(search={"trials": 6, "method": "tpe"})
    whole = create(tmp_path / "whole", sweep)
    undisturbed, _ = run(whole, sweep)
    total = len(ran(whole.path))
    for cut in range(1, total):
        directory = create(tmp_path / str(cut), sweep)
        with pytest.raises(KeyboardInterrupt):
            run(directory, sweep, _Cut(cut))
        found, _ = run(RunDirectory.open(directory.path), sweep)
        assert [(r.trial_id, r.repeat) for r in ran(directory.path)] == [
            (r.trial_id, r.repeat) for r in ran(whole.path)
        ]
        assert found.final.best is not None
        assert undisturbed.final.best is not None
        assert found.final.best.trial_id == undisturbed.final.best.trial_id


class _Cut(FakeRunner):
    """Is interrupted in its n-th trial."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def run(self, trial: TrialSpec, **how: Any) -> Record:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return super().run(trial, **how)


def test_a_lost_journal_is_made_again_from_the_records(tmp_path: Path) -> None:
    sweep = small_sweep(search={"trials": 6, "method": "tpe"})
    directory = create(tmp_path, sweep)
    run(directory, sweep)
    before = ran(directory.path)
    (directory.path / JOURNAL).unlink()
    runner = FakeRunner()
    run(RunDirectory.open(directory.path), sweep, runner)
    assert runner.began == []
    assert ran(directory.path) == before


def test_a_damaged_journal_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    sweep = small_sweep(search={"trials": 3, "method": "tpe"})
    directory = create(tmp_path, sweep)
    run(directory, sweep)
    before = ran(directory.path)
    journal = directory.path / JOURNAL
    journal.write_bytes(b"garbage\n" + journal.read_bytes())
    with pytest.raises(StudyStorageError, match=r"study.journal is damaged: line 1"):
        run(RunDirectory.open(directory.path), sweep)
    assert ran(directory.path) == before


def test_without_a_feasible_configuration_the_nearest_miss_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_processes: SharedProcesses
) -> None:
    shared_processes.lend_by(monkeypatch)
    sweep = small_sweep(objective={"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 1Mi"}})
    directory = create(tmp_path, sweep)
    found, _ = run(directory, sweep)
    records = ran(directory.path)
    document = search_document(found, sweep.objective, records)
    assert document["best"] is None
    miss = document["nearest_miss"]
    smallest = min(records, key=lambda r: r.memory.peak_device_bytes or 0 if r.memory else 1 << 60)
    assert miss["trial_id"] == smallest.trial_id
    assert miss["obstacles"][0].startswith("peak_device_bytes <= 1 MiB (has ")
    assert all(record.repeat == 0 for record in records), "nothing is worth measuring again"


def test_several_objectives_give_a_front(tmp_path: Path) -> None:
    sweep = small_sweep(objective={"maximize": "tokens_per_s", "minimize": "peak_device_bytes"})
    directory = create(tmp_path, sweep)
    found, _ = run(directory, sweep)
    rows = {s.trial_id: s for s in summarize(ran(directory.path))}
    assert len(found.front) > 1
    peaks = [rows[key].number("peak_device_bytes") for key in found.front]
    assert peaks == sorted(peaks, reverse=True), "faster first, so larger first"
    assert found.final.best is not None
    assert found.final.best.trial_id in found.front


def test_points_of_include_run_first(tmp_path: Path) -> None:
    sweep = small_sweep(
        include=[{"zero_stage": 1, "overlap_comm": False}], search={"trials": 2, "method": "tpe"}
    )
    directory = create(tmp_path, sweep)
    run(directory, sweep)
    assert ran(directory.path)[0].axes["overlap_comm"] is False


def test_earlier_results_teach_and_are_measured_anew(tmp_path: Path) -> None:
    first = create(tmp_path, small_sweep())
    run(first, small_sweep())
    sweep = small_sweep(search={"method": "tpe", "trials": 2, "warm_start": [str(first.path)]})
    second = create(tmp_path, sweep)
    found, _ = run(second, sweep)
    marked = by_figure(summarize(load_records(first.path)), sweep.objective)[0]
    assert marked is not None
    assert found.final.best is not None
    assert found.final.best.trial_id == marked.trial_id, "two trials were enough"


class MisledRunner(FakeRunner):
    """Has no references, and cannot compute any after the first few: the user's input is bad."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self._good = good

    def has_reference(self, trial: TrialSpec) -> bool:
        return False

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        self._good -= 1
        return Failure("usage", "no such file: none.txt") if self._good < 0 else None


def test_bad_input_ends_a_search_only_where_nothing_has_run_yet(tmp_path: Path) -> None:
    sweep = small_sweep(search={"trials": 2, "method": "random"})
    with pytest.raises(UsageError, match=r"no such file: none\.txt"):
        run(create(tmp_path / "first", sweep), sweep, MisledRunner(0))
    directory = create(tmp_path / "later", sweep)
    found, _ = run(directory, sweep, MisledRunner(1))
    assert found.stopped == "the budget of 2 trials is spent"
