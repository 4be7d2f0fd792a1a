"""What a session tells while it works, and what it calls its study."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.making import make_trial
from zbench.launch.events import SweepStarted, TrialFinished, TrialStarted, Watch
from zbench.record.record import Record
from zbench.record.store import RunDirectory
from zbench.spec.trial import TrialSpec
from zbench.tune.session import SearchTask, Session, longest_trial
from zbench.tune.storage import StudyStorageError, relational_storage

from .fakes import Ear, FakeRunner, small_sweep
from .paced import Paced
from .test_ledger import SWEEP, begin, ledger, result
from .test_session import FACTS, create, ran, run

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def searched(trials: int, **search: Any) -> Any:
    return small_sweep(search={"method": "tpe", "trials": trials, "patience": 99, **search})


def test_each_repeat_is_told_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    runner = FakeRunner()
    _, ear = run(create(tmp_path, searched(3)), searched(3), runner)
    assert [(event.trial.trial_id, event.repeat) for event in ear.of(TrialStarted)] == runner.began
    ended = ear.of(TrialFinished)
    assert [(event.trial.trial_id, event.record.repeat) for event in ended] == runner.began
    assert all(event.seconds > 0 for event in ended)
    assert [event.left for event in ended] == [2, 1, *[0] * (len(ended) - 2)]


@pytest.mark.parametrize(("trials", "left"), [(5, 2), (2, 0)])
def test_a_resumed_search_tells_what_is_done_and_what_is_left(tmp_path: Path, trials: int, left: int) -> None:
    directory = create(tmp_path, searched(3))
    run(directory, searched(3))
    done = ran(directory.path)
    _, ear = run(RunDirectory.open(directory.path), searched(trials))
    (started,) = ear.of(SweepStarted)
    assert (started.finished, started.repeats) == (done, left)


def test_a_grid_without_a_budget_has_no_number_of_trials_left(tmp_path: Path) -> None:
    sweep = small_sweep(axes={"zero_stage": [1, 2]}, search={"method": "grid"})
    _, ear = run(create(tmp_path, sweep), sweep)
    (started,) = ear.of(SweepStarted)
    assert started.repeats == 0


def test_what_another_worker_ended_meanwhile_is_told_without_trial_and_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"

    class Beside(FakeRunner):
        def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
            if not self.began:
                other = ledger(url)
                lease = begin(other, 7)
                assert lease is not None
                assert other.finish(lease, [result(7)])
            return super().run(trial, repeat=repeat, watch=watch)

    runner, task = Beside(), {"storage": url, "study": "s", "is_worker": True}
    _, ear = run(create(tmp_path, SWEEP), searched(3), runner, **task)
    mine = [event for event in ear.of(TrialFinished) if event.trial is not None]
    theirs = [event for event in ear.of(TrialFinished) if event.trial is None]
    assert [(event.record.trial_id, event.record.repeat) for event in mine] == runner.began
    assert all(event.trial.trial_id == event.record.trial_id and event.seconds > 0 for event in mine)
    assert [(event.record.trial_id, event.seconds) for event in theirs] == [(result(7).trial_id, 0.0)]


@pytest.mark.parametrize(("shared", "beating"), [(True, 1), (False, 0)])
def test_signs_of_life_are_given_while_a_trial_of_a_shared_study_runs(
    tmp_path: Path, shared: bool, beating: int
) -> None:
    threads: list[int] = []

    class Watched(FakeRunner):
        def run(self, trial: TrialSpec, **how: Any) -> Record:
            threads.append(threading.active_count())
            return super().run(trial, **how)

    before = threading.active_count()
    storage = f"sqlite:///{tmp_path}/study.db" if shared else None
    run(create(tmp_path, searched(2)), searched(2), Watched(), storage=storage, is_worker=True)
    assert [count - before for count in threads] == [beating] * 2


def test_single_goals_have_no_front_and_axes_their_shares(tmp_path: Path) -> None:
    found, _ = run(create(tmp_path, small_sweep()), small_sweep())
    assert found.front == []
    assert set(found.importance) == {"zero_stage", "offload_optimizer", "reduce_bucket_size"}


def test_only_what_meets_every_bound_is_on_the_front(tmp_path: Path) -> None:
    goals = {"maximize": "tokens_per_s", "minimize": "peak_device_bytes"}
    sweep = small_sweep(
        axes={"zero_stage": [0, 1, 2]},
        objective={**goals, "subject_to": {"median_step_s": ">= 1.5"}},
        search={"method": "random"},
    )
    directory = create(tmp_path, sweep)
    found, _ = run(directory, sweep, Paced({0: 1.0, 1: 2.0, 2: 3.0}, {0: 50, 1: 200, 2: 100}))
    stages = {record.trial_id: record.axes["zero_stage"] for record in ran(directory.path)}
    assert [stages[trial_id] for trial_id in found.front] == [1, 2]


@pytest.mark.parametrize(
    ("search", "outcome"),
    [
        ({"method": "random"}, "timeout"),
        ({"method": "random", "prune_slower_than": 3.0}, "ok"),
        ({"method": "grid"}, "ok"),
        ({"method": "grid", "prune_slower_than": 1.5}, "timeout"),
    ],
)
def test_a_search_ends_what_is_twice_as_slow_but_a_grid_only_when_it_is_asked_to(
    tmp_path: Path, search: dict[str, Any], outcome: str
) -> None:
    sweep = small_sweep(
        axes={"zero_stage": [1]}, include=[{"zero_stage": 0}], search=search, run={"repeats": 2, "steps": 8}
    )
    directory = create(tmp_path, sweep)
    run(directory, sweep, Paced({0: 1.0, 1: 2.5}))
    assert {r.axes["zero_stage"]: r.outcome for r in ran(directory.path) if r.repeat == 0} == {
        0: "ok",
        1: outcome,
    }


def test_a_study_is_named_after_the_run_or_where_it_is_shared_after_the_sweep(tmp_path: Path) -> None:
    directory = create(tmp_path / "alone", searched(1))
    assert run(directory, searched(1))[0].study == directory.run_id
    shared = {"storage": f"sqlite:///{tmp_path}/study.db"}
    assert run(create(tmp_path / "shared", searched(1)), searched(1), **shared)[0].study == "small"
    named = {**shared, "study": "mine"}
    assert run(create(tmp_path / "named", searched(1)), searched(1), **named)[0].study == "mine"


def test_a_storage_that_fails_in_a_search_is_named(tmp_path: Path) -> None:
    class Lost(FakeRunner):
        def run(self, trial: TrialSpec, **_: Any) -> Record:
            raise sqlite3.DatabaseError("database disk image is malformed")

    url = f"sqlite:///{tmp_path}/study.db"
    with pytest.raises(StudyStorageError, match=rf"cannot use storage {url}: .* is malformed"):
        run(create(tmp_path, searched(1)), searched(1), Lost(), storage=url)


def test_a_storage_that_fails_when_the_study_is_opened_is_named(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    relational_storage(f"sqlite:///{file}")
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    task = SearchTask(searched(1), tmp_path, FACTS, url)
    with (
        create(tmp_path, searched(1)) as directory,
        pytest.raises(StudyStorageError, match=r"cannot use storage sqlite:///.*readonly"),
    ):
        Session(task, directory, FakeRunner(), Ear())


def test_a_trial_lasts_for_its_own_time_twice_and_for_its_reference() -> None:
    run_of_three = make_trial(world_size=3, timeout=10).run
    assert longest_trial(run_of_three) == 2 * 10 + 4 * 3 * 10
