"""The shared facts of a study: taken once, finished once, freed when a worker is lost, one sweep's only."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from tests.launch.processes import until
from zbench.errors import UsageError
from zbench.record.record import Failure, Record
from zbench.record.store import TRIALS, RunDirectory, load_records
from zbench.record.summary import summarize
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.ledger import Ledger, adopt, gather, load_sweep, open_study, record_invalid, record_of
from zbench.tune.objective import score
from zbench.tune.space import Space
from zbench.tune.storage import Heartbeat, Outages, relational_storage

from .fakes import FakeRunner, small_sweep
from .test_space import ranged

SWEEP = small_sweep()
SPACE = Space(SWEEP)
POINTS = SPACE.points() or []


@pytest.fixture(params=["journal", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:///{tmp_path}/study"


@pytest.fixture
def shared(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study"


def storage_of(url: str) -> BaseStorage:
    kind, _, path = url.partition(":///")
    if kind == "journal":
        return JournalStorage(JournalFileBackend(path))
    return relational_storage(url, Heartbeat(1, 30))


def ledger(
    url: str,
    *,
    sweep: SweepSpec = SWEEP,
    machine: str = "kind",
    outages: Outages | None = None,
    longest: float = 1000.0,
) -> Ledger:
    pace = None if url.startswith("journal") else 0.1
    study = open_study(storage_of(url), "s", sweep)
    return Ledger(study, Space(sweep), machine, outages or Outages(print), pace=pace, longest=longest)


def begin(book: Ledger, index: int) -> Trial | None:
    trial = SPACE.trial(POINTS[index])
    assert isinstance(trial, TrialSpec)
    return book.begin(POINTS[index], trial.trial_id)


def begun(book: Ledger, index: int) -> Trial:
    lease = begin(book, index)
    assert lease is not None
    return lease


def result(index: int, **changes: Any) -> Record:
    trial = SPACE.trial(POINTS[index])
    assert isinstance(trial, TrialSpec)
    return replace(FakeRunner().run(trial), **changes)


def test_what_is_finished_is_there_for_the_next_process_and_for_optunas_tools(url: str) -> None:
    book = ledger(url)
    lease = begun(book, 0)
    assert [trial.state for trial in book.trials()] == [TrialState.RUNNING]
    assert book.finish(lease, result(0))
    (trial,) = ledger(url).trials()
    assert trial.state == TrialState.COMPLETE
    assert (trial.user_attrs["point"], trial.user_attrs["kind"]) == (POINTS[0], "kind")
    assert record_of(trial) == result(0)
    expected = score(summarize([result(0)])[0], SWEEP.objective)
    assert (trial.params, trial.distributions) == SPACE.encode(POINTS[0])
    assert (tuple(trial.values), trial.constraints) == (expected.values, expected.margins)


def test_what_an_earlier_process_left_can_be_entered_again(tmp_path: Path) -> None:
    finished, entered = (ledger(f"journal:///{tmp_path}/{name}") for name in "ab")
    assert finished.finish(begun(finished, 0), result(0))
    entered.enter(POINTS[0], result(0))
    (one,), (other,) = finished.trials(), entered.trials()
    for name in ("params", "distributions", "values", "constraints", "state"):
        assert getattr(one, name) == getattr(other, name)
    assert record_of(one) == record_of(other)


def test_a_result_that_was_stored_when_the_connection_broke_counts_as_stored(url: str) -> None:
    book = ledger(url)
    lease = begun(book, 0)
    assert [book.finish(lease, result(0)) for _ in range(2)] == [True, True]
    assert [record_of(trial) for trial in book.trials()] == [result(0)]


def test_a_point_is_taken_once_until_it_is_given_back(url: str) -> None:
    book = ledger(url)
    lease = begun(book, 0)
    assert begin(ledger(url), 0) is None
    assert len(book.trials()) == 1
    book.drop(lease, "interrupted")
    assert book.trials() == []
    assert book.finish(begun(ledger(url), 0), result(0))
    assert begin(book, 0) is None, "it has run"


def test_a_point_that_was_begun_when_the_connection_broke_is_this_workers(shared: str) -> None:
    book = ledger(shared)
    first = begun(book, 0)
    again = begun(book, 0)
    assert again.number == first.number
    assert book.finish(again, result(0))
    assert [trial.number for trial in book.trials()] == [first.number]


def test_of_many_at_once_one_has_each_point(shared: str) -> None:
    holders: list[int] = []
    books = [ledger(shared) for _ in range(4)]
    barrier = threading.Barrier(len(books))

    def race(book: Ledger) -> None:
        barrier.wait()
        holders.extend(index for index in range(6) if begin(book, index) is not None)

    threads = [threading.Thread(target=race, args=(book,)) for book in books]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(holders) == [0, 1, 2, 3, 4, 5]


def test_trials_that_did_not_finish_carry_their_margins(url: str) -> None:
    book = ledger(url)
    oom = result(0, outcome="oom", timing=None, memory=None, error=Failure("oom", "too large"))
    assert book.finish(begun(book, 0), oom)
    (trial,) = book.trials()
    assert trial.state == TrialState.PRUNED
    assert trial.constraints["finished"] == 1.0


def silent(url: str) -> None:
    """Make the last signs of life look an hour old."""
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'"))
    engine.dispose()


def test_a_lost_workers_point_is_freed_and_its_late_result_refused(shared: str) -> None:
    theirs, book = ledger(shared), ledger(shared)
    lease = begun(theirs, 0)
    assert not book.reap()
    assert begin(book, 0) is None
    silent(shared)
    assert book.reap()
    assert not book.reap(), "once"
    assert book.finish(begun(book, 0), result(0))
    assert not theirs.finish(lease, result(0, run_id="late"))
    assert [record_of(trial).run_id for trial in book.trials()] == ["fake"]


def test_a_worker_that_works_gives_signs_of_life(shared: str) -> None:
    theirs, book = ledger(shared), ledger(shared)
    lease = begun(theirs, 0)
    silent(shared)
    with theirs.held(lease):
        until(lambda: not book._storage._get_stale_trial_ids(book._study._study_id), "a sign of life")
    silent(shared)
    assert book.reap()


def test_what_runs_far_longer_than_any_trial_may_is_lost(url: str) -> None:
    begun(ledger(url), 0)
    assert not ledger(url, longest=1000.0).reap()
    hasty = ledger(url, longest=0.01)
    assert not hasty.reap(), "it was seen for the first time"
    time.sleep(0.05)
    assert hasty.reap()


def test_after_an_outage_nobody_is_given_up_until_all_had_time_for_a_sign_of_life(
    shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(ledger(shared), 0)
    silent(shared)
    outages = Outages(print)
    book = ledger(shared, outages=outages)
    outages.note()
    assert not book.reap()
    time.sleep(0.35)  # three paces
    assert book.reap()


def test_a_sign_of_life_that_fails_ends_no_trial(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outages, beats = Outages(print), list[int]()
    book = ledger(shared, outages=outages)
    lease = begun(book, 0)

    def fail(trial_id: int) -> None:
        beats.append(trial_id)
        raise optuna.exceptions.StorageInternalError

    monkeypatch.setattr(book._storage, "record_heartbeat", fail)
    with book.held(lease):
        until(lambda: len(beats) > 1, "another sign of life")
    assert outages.was_within(10)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"axes": {"zero_stage": [0, 1]}}, "axes"),
        ({"engine": {"overlap_comm": False}}, "engine"),
        ({"objective": {"minimize": "median_step_s"}}, "objective"),
    ],
)
def test_another_sweep_may_not_use_the_study_and_is_told_what_differs(
    shared: str, changes: dict[str, Any], named: str
) -> None:
    ledger(shared)
    with pytest.raises(UsageError, match=rf"searches another sweep \(small\): {named} differ.*--study"):
        ledger(shared, sweep=small_sweep(**changes))


def test_another_way_of_searching_is_the_same_study(shared: str) -> None:
    ledger(shared)
    ledger(shared, sweep=small_sweep(search={"method": "random", "trials": 5}))
    axes = dict(reversed(SWEEP.axes.items()))
    ledger(shared, sweep=small_sweep(axes=axes))


def test_a_worker_finds_the_sweep_in_the_study(shared: str) -> None:
    with pytest.raises(UsageError, match=r"no study 's' in this storage \(it holds none yet\)"):
        load_sweep(storage_of(shared), "s")
    ledger(shared)
    assert load_sweep(storage_of(shared), "s") == SWEEP
    with pytest.raises(UsageError, match=r"no study 'other' in this storage \(there are s\)"):
        load_sweep(storage_of(shared), "other")


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (None, "was not made by zbench"),
        ({}, "was not made by zbench"),
        ("text", "was not made by zbench"),
        ({"schema_version": 2, "sweep": {}}, "newer zbench"),
    ],
)
def test_a_study_that_something_else_made_is_refused(shared: str, known: Any, message: str) -> None:
    study = optuna.create_study(storage=storage_of(shared), study_name="s", direction="maximize")
    study.set_user_attr("zbench", known)
    with pytest.raises(UsageError, match=message):
        ledger(shared)
    with pytest.raises(UsageError, match=message):
        load_sweep(storage_of(shared), "s")


def test_points_of_include_are_kept_though_no_axis_has_them(url: str) -> None:
    sweep = small_sweep(include=[{"zero_stage": 1, "overlap_comm": False}])
    space, book = Space(sweep), ledger(url, sweep=sweep)
    (point,) = space.included
    assert book.begin(point, "123") is not None
    assert [trial.user_attrs["point"] for trial in book.trials()] == [point]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    made = RunDirectory.create(
        tmp_path, SWEEP.name, spec=sweep_document(SWEEP), environment={"fingerprint": "kind"}
    )
    with made:
        yield made


def study(tmp_path: Path, kind: str = "kind") -> Ledger:
    return ledger(f"journal:///{tmp_path}/study", machine=kind)


def finish(book: Ledger, index: int) -> str:
    """Enter the result of a point; return its trial id."""
    lease = begun(book, index)
    assert book.finish(lease, result(index))
    return str(lease.user_attrs["trial_id"])


def test_new_records_of_this_kind_of_machine_are_gathered_once(
    tmp_path: Path, directory: RunDirectory
) -> None:
    book = study(tmp_path)
    expected = [finish(book, 0), finish(book, 1)]
    finish(study(tmp_path, "unlike"), 2)
    gathered = gather(book.of_this_kind(book.trials()), directory)
    assert [record.trial_id for record in gathered] == expected
    assert {record.run_id for record in gathered} == {directory.run_id}
    assert directory.records() == gathered
    assert gather(book.of_this_kind(book.trials()), directory) == []


def test_the_first_repeats_in_a_directory_make_a_lost_study_again(
    tmp_path: Path, directory: RunDirectory
) -> None:
    here = {"run_id": directory.run_id}
    directory.append(result(0, **here))
    directory.append(result(1, **here, outcome="oom", timing=None, memory=None, error=Failure("oom", "x")))
    directory.append(result(2, **here, repeat=1))
    directory.append(result(3, **here, outcome="invalid", timing=None, memory=None))
    directory.append(result(4, **here, trial_id="abcdefabcdef"))
    book = study(tmp_path)
    adopt(book, directory, SPACE)
    assert [trial.user_attrs["point"] for trial in book.trials()] == [POINTS[0], POINTS[1]]
    assert all(trial.state.is_finished() for trial in book.trials())


def test_points_that_cannot_exist_are_recorded_once_with_the_reason(directory: RunDirectory) -> None:
    for _ in range(2):
        record_invalid(SPACE, directory)
        records = directory.records()
        assert load_records(directory.path) == records
        assert len((directory.path / TRIALS).read_text().splitlines()) == len(records)
        assert [record.axes["reduce_bucket_size"] for record in records] == [10_000, 100_000, 1_000_000]
        for record in records:
            assert (record.outcome, record.repeat, record.run_id) == ("invalid", 0, directory.run_id)
            assert record.axes["zero_stage"] == 0
            assert record.error is not None
            assert "offload_optimizer" in record.error.message


def test_of_points_that_cannot_exist_a_thousand_are_recorded(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    sizes = list(range(10_000, 11_001))
    axes = {"zero_stage": [0], "offload_optimizer": ["none", "cpu"], "reduce_bucket_size": sizes}
    record_invalid(Space(small_sweep(axes=axes)), directory)
    assert len(directory.records()) == 1000 < len(sizes)


def test_of_a_space_that_cannot_be_listed_no_invalid_points_are_recorded(directory: RunDirectory) -> None:
    record_invalid(Space(ranged()), directory)
    assert directory.records() == []
