"""The shared facts of a study: taken once, finished once, freed when a worker is lost, one sweep's only."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.launch.processes import until
from zbench.errors import UsageError
from zbench.record.record import Failure
from zbench.record.store import RunDirectory
from zbench.record.summary import summarize
from zbench.spec.sweep import sweep_document
from zbench.tune.ledger import Ledger, adopt, gather, load_sweep, record_of
from zbench.tune.objective import score

from .fakes import POINTS, SPACE, SWEEP, begin, begun, ledger, result, silence, small_sweep, storage_of


@pytest.fixture(params=["journal", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:///{tmp_path}/study"


@pytest.fixture
def shared(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study"


def test_a_finished_trial_is_there_for_processes_and_optunas_tools(url: str) -> None:
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


OOM = {"outcome": "oom", "timing": None, "memory": None, "error": Failure("oom", "too large")}


def test_a_point_is_taken_once_until_it_is_given_back(url: str) -> None:
    book = ledger(url)
    lease = begun(book, 0)
    assert begin(ledger(url), 0) is None
    assert len(book.trials()) == 1
    book.drop(lease, "interrupted")
    assert book.trials() == []
    assert book.finish(begun(ledger(url), 0), result(0))
    assert begin(book, 0) is None, "it has run"


def test_a_trial_whose_connection_broke_stays_its_workers(url: str) -> None:
    book = ledger(url)
    first, again = begun(book, 0), begun(book, 0)
    assert again.number == first.number
    assert [book.finish(lease, result(0)) for lease in (again, first)] == [True, True]
    (trial,) = book.trials()
    assert (trial.number, record_of(trial)) == (first.number, result(0))


def test_of_many_at_once_one_has_each_point(shared: str) -> None:
    books = [ledger(shared) for _ in range(4)]
    barrier = threading.Barrier(len(books))

    def race(book: Ledger) -> list[int]:
        barrier.wait()
        return [index for index in range(6) if begin(book, index) is not None]

    with ThreadPoolExecutor(len(books)) as threads:
        assert sorted(itertools.chain(*threads.map(race, books))) == [0, 1, 2, 3, 4, 5]


def test_a_lost_workers_point_is_freed_its_result_refused(shared: str) -> None:
    theirs, book = ledger(shared), ledger(shared)
    lease = begun(theirs, 0)
    assert not book.reap()
    assert begin(book, 0) is None
    silence(shared)
    assert book.reap()
    assert not book.reap(), "once"
    assert book.finish(begun(book, 0), result(0))
    assert not theirs.finish(lease, result(0, run_id="late"))
    assert [record_of(trial).run_id for trial in book.trials()] == ["fake"]


def test_a_worker_that_works_gives_signs_of_life(shared: str) -> None:
    theirs, book = ledger(shared), ledger(shared)
    lease = begun(theirs, 0)
    silence(shared)
    with theirs.held(lease):
        until(lambda: not book._storage._get_stale_trial_ids(book._study._study_id), "a sign of life")
    silence(shared)
    assert book.reap()


def test_what_runs_far_longer_than_any_trial_may_is_lost(url: str) -> None:
    begun(ledger(url), 0)
    assert not ledger(url, longest=1000.0).reap()
    hasty = ledger(url, longest=0.0)
    assert not hasty.reap(), "it was seen for the first time"
    until(hasty.reap, "it is given up")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"axes": {"zero_stage": [0, 1]}}, "axes"),
        ({"objective": {"minimize": "median_step_s"}}, "objective"),
    ],
)
def test_another_sweep_is_refused_with_the_difference(
    shared: str, changes: dict[str, Any], named: str
) -> None:
    ledger(shared)
    with pytest.raises(UsageError, match=rf"searches another sweep \(small\): {named} differ.*--study"):
        ledger(shared, sweep=small_sweep(**changes))


def test_another_way_of_searching_is_the_same_study(shared: str) -> None:
    ledger(shared)
    axes = dict(reversed(SWEEP.axes.items()))
    ledger(shared, sweep=small_sweep(axes=axes, search={"method": "random", "trials": 5}))


def test_a_worker_finds_the_sweep_in_the_study(shared: str) -> None:
    with pytest.raises(UsageError, match=r"no study 's' in this storage \(it holds none yet\)"):
        load_sweep(storage_of(shared), "s")
    ledger(shared)
    assert load_sweep(storage_of(shared), "s") == SWEEP
    with pytest.raises(UsageError, match=r"no study 'other' in this storage \(there are s\)"):
        load_sweep(storage_of(shared), "other")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (None, "was not made by zbench"),
        ({"schema_version": 2, "sweep": {}}, "newer zbench"),
    ],
)
def test_a_study_that_something_else_made_is_refused(shared: str, attributes: Any, message: str) -> None:
    study = optuna.create_study(storage=storage_of(shared), study_name="s", direction="maximize")
    study.set_user_attr("zbench", attributes)
    with pytest.raises(UsageError, match=message):
        ledger(shared)
    with pytest.raises(UsageError, match=message):
        load_sweep(storage_of(shared), "s")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    document = sweep_document(SWEEP)
    facts = {"fingerprint": "kind"}
    with RunDirectory.create(tmp_path, SWEEP.name, spec=document, environment=facts) as directory:
        yield directory


def test_new_records_of_this_kind_of_machine_are_gathered_once(url: str, directory: RunDirectory) -> None:
    for kind, index in (("kind", 0), ("kind", 1), ("unlike", 2)):
        book = ledger(url, machine=kind)
        assert book.finish(begun(book, index), result(index))
    book = ledger(url)
    gathered = gather(book.of_this_kind(book.trials()), directory)
    assert [record.trial_id for record in gathered] == [result(0).trial_id, result(1).trial_id]
    assert {record.run_id for record in gathered} == {directory.run_id}
    assert directory.records() == gathered
    assert gather(book.of_this_kind(book.trials()), directory) == []


def test_first_repeats_make_a_lost_study_again(url: str, directory: RunDirectory) -> None:
    here = {"run_id": directory.run_id}
    invalid = {"outcome": "invalid", "timing": None, "memory": None}
    for index, changes in enumerate([{}, OOM, {"repeat": 1}, invalid, {"trial_id": "abcdefabcdef"}]):
        directory.append(result(index, **here, **changes))
    book = ledger(url)
    adopt(book, directory, SPACE)
    assert [trial.user_attrs["point"] for trial in book.trials()] == [POINTS[0], POINTS[1]]
    assert all(trial.state.is_finished() for trial in book.trials())
