"""A search from start to finish, with a runner that measures nothing: what it runs, leaves out and tells."""

import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.exc

from tests.making import make_trial
from zbench.analysis.ranking import by_figure
from zbench.errors import UsageError
from zbench.estimate.result import NotSimulated, SimulationOutcome
from zbench.launch.events import SweepStarted, TrialFinished, TrialStarted, Watch
from zbench.record.record import Failure, Record
from zbench.record.store import RunDirectory, load_records
from zbench.record.summary import summarize
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune import session
from zbench.tune.findings import SearchOutcome, search_document
from zbench.tune.objective import History
from zbench.tune.session import SearchTask, Session, longest_trial
from zbench.tune.space import Point
from zbench.tune.storage import JOURNAL, StudyStorageError, relational_storage

from .fakes import Ear, FakeRunner, Paced, estimated, simulating, small_sweep
from .test_ledger import SWEEP, begin, ledger, result

FACTS = {"fingerprint": "kind"}
SIZES = {"micro_batch_size": [1, 2, 4, 8]}
STAGES = {"zero_stage": [0, 1, 2]}
ONE_GIB = {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 1Gi"}}


def create(home: Path, sweep: SweepSpec) -> RunDirectory:
    return RunDirectory.create(home, sweep.name, spec=sweep_document(sweep), environment=FACTS)


def run(
    directory: RunDirectory, sweep: SweepSpec, runner: FakeRunner | None = None, **task: Any
) -> tuple[SearchOutcome, Ear]:
    ear = Ear()
    whole = SearchTask(sweep, directory.path, FACTS, **task)
    with directory:
        return Session(whole, directory, runner or FakeRunner(), ear).run(), ear  # type: ignore[arg-type]


def searched(
    home: Path, runner: FakeRunner | None = None, **changes: Any
) -> tuple[SearchOutcome, list[Record]]:
    """Search a small sweep with these changes; return what was found and the first repeats that were run."""
    sweep = small_sweep(**changes)
    directory = create(home, sweep)
    found, _ = run(directory, sweep, runner)
    return found, firsts(directory.path)


def ran(path: Path) -> list[Record]:
    """Return the records of what was run."""
    return [record for record in load_records(path) if record.outcome != "invalid"]


def firsts(path: Path) -> list[Record]:
    return [record for record in ran(path) if record.repeat == 0]


def first_ids(runner: FakeRunner) -> list[str]:
    return [trial_id for trial_id, repeat in runner.began if repeat == 0]


def budget(trials: int, method: str = "tpe", **search: Any) -> dict[str, Any]:
    return {"method": method, "trials": trials, "patience": 99, **search}


@pytest.mark.parametrize("method", ["grid", "random", "tpe", "nsga2"])
def test_every_point_runs_once_where_the_budget_allows(tmp_path: Path, method: str) -> None:
    runner = FakeRunner()
    found, records = searched(tmp_path, runner, search=budget(40, method))
    assert found.stopped == "every point that can run was tried"
    assert len(first_ids(runner)) == len(set(first_ids(runner))) == len(records) == 15


def test_every_finished_trial_is_in_the_run_directory_and_was_told(tmp_path: Path) -> None:
    sweep, runner = small_sweep(search=budget(8)), FakeRunner()
    directory = create(tmp_path, sweep)
    began = time.monotonic()
    found, ear = run(directory, sweep, runner)
    assert found.stopped == "the budget of 8 trials is spent"
    records, ended = ran(directory.path), ear.of(TrialFinished)
    assert {(r.trial_id, r.repeat) for r in records} == set(runner.began)
    assert len([r for r in records if r.repeat == 0]) == 8
    assert all(record.run_id == directory.run_id for record in records)
    assert [event.record for event in ended] == records
    assert [(event.trial.trial_id, event.repeat) for event in ear.of(TrialStarted)] == runner.began
    assert [event.trial.trial_id for event in ended] == [record.trial_id for record in records]
    assert all(event.seconds > 0 for event in ended)
    assert sum(event.seconds for event in ended) <= time.monotonic() - began
    assert [event.left for event in ended] == [*range(7, -1, -1), *[0] * (len(ended) - 8)]


def test_the_announced_best_is_the_one_that_every_table_marks(tmp_path: Path) -> None:
    sweep = small_sweep()
    directory = create(tmp_path, sweep)
    found, _ = run(directory, sweep)
    marked = by_figure(summarize(ran(directory.path)), sweep.objective)[0]
    assert found.final.best is not None
    assert found.final.best.trial_id == marked.trial_id
    assert {record.repeat for record in marked.records} == {0, 1, 2}
    assert found.final.runner_up is not None
    assert found.front == [], "of a single goal"
    assert set(found.importance) == {"zero_stage", "offload_optimizer", "reduce_bucket_size"}


class Cut(FakeRunner):
    """Is interrupted in its n-th trial."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def run(self, trial: TrialSpec, **how: Any) -> Record:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return super().run(trial, **how)


@pytest.mark.parametrize(("method", "trials", "cuts"), [("tpe", 6, range(1, 10)), ("nsga2", 14, (5, 10, 13))])
def test_a_search_cut_off_anywhere_resumes_to_the_same_end(
    tmp_path: Path, method: str, trials: int, cuts: Collection[int]
) -> None:
    sweep = small_sweep(search=budget(trials, method))
    whole = create(tmp_path / "whole", sweep)
    undisturbed, _ = run(whole, sweep)
    for cut in cuts:
        directory = create(tmp_path / str(cut), sweep)
        with pytest.raises(KeyboardInterrupt):
            run(directory, sweep, Cut(cut))
        found, _ = run(RunDirectory.open(directory.path), sweep)
        assert [(r.trial_id, r.repeat) for r in ran(directory.path)] == [
            (r.trial_id, r.repeat) for r in ran(whole.path)
        ]
        ends = [(final.best.trial_id, final.lead) for final in (found.final, undisturbed.final) if final.best]
        assert ends[0] == ends[1]


@pytest.mark.parametrize("damage", [None, b"", b"garbage\n", b'{"op_code": 4'])
def test_the_journal_is_made_from_the_records(tmp_path: Path, damage: bytes | None) -> None:
    sweep = small_sweep(search=budget(6))
    directory = create(tmp_path, sweep)
    run(directory, sweep)
    before, journal = ran(directory.path), directory.path / JOURNAL
    journal.unlink() if damage is None else journal.write_bytes(damage)
    runner = FakeRunner()
    run(RunDirectory.open(directory.path), sweep, runner)
    assert runner.began == []
    assert ran(directory.path) == before


@pytest.mark.parametrize(("trials", "left"), [(5, 2), (2, 0)])
def test_a_resumed_search_tells_what_is_done_and_what_is_left(tmp_path: Path, trials: int, left: int) -> None:
    directory = create(tmp_path, small_sweep(search=budget(3)))
    run(directory, small_sweep(search=budget(3)))
    done = ran(directory.path)
    _, ear = run(RunDirectory.open(directory.path), small_sweep(search=budget(trials)))
    (started,) = ear.of(SweepStarted)
    assert (started.finished, started.repeats) == (done, left)


def test_a_grid_without_a_budget_has_no_number_of_trials_left(tmp_path: Path) -> None:
    sweep = small_sweep(axes={"zero_stage": [1, 2]}, search={"method": "grid"})
    _, ear = run(create(tmp_path, sweep), sweep)
    (started,) = ear.of(SweepStarted)
    assert started.repeats == 0
    assert {event.left for event in ear.of(TrialFinished)} == {0}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_trial_of_a_shared_study_that_is_interrupted_is_free_again(
    tmp_path: Path, error: type[BaseException]
) -> None:
    class Interrupted(FakeRunner):
        def run(self, trial: TrialSpec, **_: Any) -> Record:
            raise error

    url = f"sqlite:///{tmp_path}/study.db"
    with pytest.raises(error):
        run(create(tmp_path, SWEEP), SWEEP, Interrupted(), storage=url, study="s")
    assert ledger(url).trials() == []


def test_crashes_and_wrong_results_do_not_stop_the_search(tmp_path: Path) -> None:
    outcomes = [({"zero_stage": 1}, "crashed"), ({"zero_stage": 2, "offload_optimizer": "cpu"}, "timeout")]
    _, records = searched(tmp_path, FakeRunner(outcomes=outcomes), search=budget(40))
    assert [record.outcome for record in records].count("ok") == 15 - 6 - 3


@pytest.mark.parametrize(("implied", "began"), [(True, 8), (False, 10)])
def test_larger_points_than_one_out_of_memory_are_run_only_when_asked(
    tmp_path: Path, implied: bool, began: int
) -> None:
    axes = {"micro_batch_size": [1, 2, 4, 8, 16], "zero_stage": [1, 2]}
    runner = FakeRunner(outcomes=[({"micro_batch_size": 4, "zero_stage": 1}, "oom")])
    _, records = searched(tmp_path, runner, axes=axes, search={"method": "grid", "imply_oom": implied})
    recorded = [r for r in records if r.error is not None and r.error.kind == "implied"]
    assert [r.axes["micro_batch_size"] for r in recorded] == ([8, 16] if implied else [])
    assert all((r.outcome, r.axes["zero_stage"]) == ("oom", 1) for r in recorded)
    assert len(first_ids(runner)) == began, "three sizes at stage 1, all five at stage 2"


def test_points_recorded_without_being_run_cost_no_budget(tmp_path: Path) -> None:
    axes = {"micro_batch_size": [1, 4, 2, 8, 16], "zero_stage": [1]}
    runner = FakeRunner(outcomes=[({"micro_batch_size": 4}, "oom")])
    _, records = searched(tmp_path, runner, axes=axes, search={"method": "grid", "trials": 3})
    assert len(first_ids(runner)) == 3
    assert len(records) == 3, "the budget is spent before the larger ones come"
    axes["micro_batch_size"] = [4, 8, 1]
    _, records = searched(tmp_path / "later", runner, axes=axes, search={"method": "grid", "trials": 2})
    assert len(records) == 3, "one of them was not run"


def simulated(trial: TrialSpec) -> SimulationOutcome:
    """Stage 0 cannot be simulated; the others need a MiB for each sample."""
    if trial.engine.zero_stage == 0:
        return NotSimulated("made not to be")
    return estimated(trial.workload.micro_batch_size << 20)


@pytest.mark.parametrize("method", ["random", "grid"])
def test_what_cannot_fit_by_the_simulation_is_left_out_and_named_but_by_a_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    simulating(monkeypatch, simulated)
    axes = {"micro_batch_size": [1, 2, 4, 8, 16, 32, 64, 128], "zero_stage": [0, 1, 2]}
    limit = {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 29Mi"}}
    found, records = searched(tmp_path, axes=axes, objective=limit, search=budget(100, method))
    if method == "random":
        assert found.stopped == "every point was tried but 6 that cannot fit by the simulation"
        assert "needs 32 MiB by the simulation, the limit is 29 MiB" in found.predicted_oom.values()
    assert len(records) == (18 if method == "random" else 24)
    for record in records:
        size, stage = record.axes["micro_batch_size"], record.axes["zero_stage"]
        assert record.simulated == ({"peak_device_bytes": size << 20} if stage else {})


def test_a_search_ends_where_two_hundred_points_in_a_row_cannot_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulating(monkeypatch, lambda _: estimated(1 << 40))
    runner = FakeRunner()
    found, _ = searched(
        tmp_path,
        runner,
        axes={"reduce_bucket_size": {"low": 1e4, "high": 1e8}},
        objective=ONE_GIB,
        search=budget(40, "random"),
    )
    assert found.stopped == "every point was tried but 200 that cannot fit by the simulation"
    assert len(first_ids(runner)) == 1, "the first is measured: a search ends with a figure"


@pytest.mark.parametrize(
    "bounds",
    [{}, {"median_step_s": "<= 1000"}, {"peak_device_bytes": ">= 1"}],
    ids=["none", "other", "least"],
)
def test_without_a_limit_of_memory_nothing_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, str]
) -> None:
    def never(trial: TrialSpec) -> SimulationOutcome:
        raise AssertionError("simulated")

    simulating(monkeypatch, never)
    objective = {"maximize": "tokens_per_s", "subject_to": bounds}
    _, records = searched(tmp_path, axes=STAGES, objective=objective, search=budget(40, "random"))
    assert len(records) == 3


def test_clearly_slow_trials_are_pruned_and_teach(tmp_path: Path) -> None:
    axes = {"reduce_bucket_size": [1_000, 10_000, 100_000, 1_000_000], "zero_stage": [1, 2]}
    engine = {"reduce_bucket_size": 1_000_000}
    _, records = searched(tmp_path, axes=axes, engine=engine, search=budget(100))
    pruned = [r.axes["reduce_bucket_size"] for r in records if r.error and r.error.kind == "pruned"]
    assert pruned
    assert set(pruned) <= {1_000, 10_000}


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
    axes, include = {"zero_stage": [1]}, [{"zero_stage": 0}]
    _, records = searched(tmp_path, Paced({0: 1.0, 1: 2.5}), axes=axes, include=include, search=search)
    assert {r.axes["zero_stage"]: r.outcome for r in records} == {0: "ok", 1: outcome}


@pytest.mark.parametrize(
    ("objective", "peaks", "outcomes"),
    [
        ({"minimize": "peak_device_bytes"}, {}, ["ok", "ok", "ok"]),
        (
            {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 200"}},
            {0: 300},
            ["ok", "ok", "timeout"],
        ),
    ],
    ids=["no goal of time", "the fastest breaks a bound"],
)
def test_only_a_best_trial_makes_others_slow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    objective: dict[str, Any],
    peaks: dict[int, int],
    outcomes: list[str],
) -> None:
    simulating(monkeypatch, lambda _: NotSimulated("made not to be"))
    runner = Paced({0: 1.0, 1: 2.5, 2: 6.0}, peaks)
    search = {"method": "grid", "prune_slower_than": 2.0}
    _, records = searched(tmp_path, runner, axes=STAGES, objective=objective, search=search)
    assert [record.outcome for record in records] == outcomes


def test_a_flattened_search_ends_before_its_budget(tmp_path: Path) -> None:
    search = {"method": "random", "trials": 100, "patience": 3, "min_gain": 0.5}
    found, records = searched(tmp_path, search=search)
    assert "brought no gain" in found.stopped
    assert len(records) < 15


def test_without_a_feasible_configuration_the_nearest_miss_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulating(monkeypatch, lambda _: NotSimulated("made not to be"))
    objective = {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 1Mi"}}
    sweep = small_sweep(objective=objective)
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


def test_of_several_objectives_the_front_holds_only_what_meets_every_bound(tmp_path: Path) -> None:
    goals = {"maximize": "tokens_per_s", "minimize": "peak_device_bytes"}
    found, records = searched(
        tmp_path,
        Paced({0: 1.0, 1: 2.0, 2: 3.0}, {0: 50, 1: 200, 2: 100}),
        axes=STAGES,
        objective={**goals, "subject_to": {"median_step_s": ">= 1.5"}},
        search={"method": "random"},
    )
    stages = {record.trial_id: record.axes["zero_stage"] for record in records}
    assert [stages[trial_id] for trial_id in found.front] == [1, 2], "the faster first"


def test_points_of_include_run_first(tmp_path: Path) -> None:
    included = {"zero_stage": 1, "overlap_comm": False}
    _, records = searched(tmp_path, include=[included], search={"method": "tpe", "trials": 3})
    assert records[0].axes["overlap_comm"] is False


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
    search = {"trials": 2, "method": "random"}
    with pytest.raises(UsageError, match=r"no such file: none\.txt"):
        searched(tmp_path / "first", MisledRunner(0), search=search)
    found, _ = searched(tmp_path / "later", MisledRunner(1), search=search)
    assert found.stopped == "the budget of 2 trials is spent"


class Beside(FakeRunner):
    """Has another worker of the study end a trial during the first one here."""

    def __init__(self, url: str, index: int, **changes: Any) -> None:
        super().__init__()
        self._url, self._index, self._changes = url, index, changes

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        if not self.began:
            other = ledger(self._url)
            lease = begin(other, self._index)
            assert lease is not None
            assert other.finish(lease, result(self._index, **self._changes))
        return super().run(trial, repeat=repeat, watch=watch)


def test_what_another_worker_ended_meanwhile_is_told_without_trial_and_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    runner, task = Beside(url, 7), {"storage": url, "study": "s", "is_worker": True}
    _, ear = run(create(tmp_path, SWEEP), small_sweep(search=budget(3)), runner, **task)
    own = [event for event in ear.of(TrialFinished) if event.trial is not None]
    theirs = [event for event in ear.of(TrialFinished) if event.trial is None]
    assert [(event.record.trial_id, event.record.repeat) for event in own] == runner.began
    assert [(event.record.trial_id, event.seconds) for event in theirs] == [(result(7).trial_id, 0.0)]


def test_what_another_worker_runs_out_of_memory_with_is_not_run_here_with_more(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    oom = {"outcome": "oom", "timing": None, "memory": None, "error": Failure("oom", "too large")}
    runner, task = Beside(url, 1, **oom), {"storage": url, "study": "s", "is_worker": True}
    sweep = small_sweep(search={"method": "grid"})
    run(create(tmp_path, sweep), sweep, runner, **task)
    assert len(runner.began) == 15 - 2, "not that point, and not the larger one beside it"


def test_of_two_that_begin_the_last_trial_of_a_budget_the_later_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, runner = f"sqlite:///{tmp_path}/study.db", FakeRunner()

    def late(history: History, taken: Collection[str]) -> Point:
        """Take its time to choose: another worker is quicker."""
        other = ledger(url)
        lease = begin(other, 1)
        assert lease is not None
        assert other.finish(lease, result(1))
        return {"zero_stage": 1, "offload_optimizer": "none", "reduce_bucket_size": 10_000}

    monkeypatch.setattr(session, "make_proposer", lambda *_: late)
    sweep = small_sweep(search=budget(1))
    found, _ = run(create(tmp_path, sweep), sweep, runner, storage=url, study="s", is_worker=True)
    assert found.stopped == "the budget of 1 trials is spent"
    assert runner.began == []
    assert [trial.user_attrs["trial_id"] for trial in ledger(url).trials()] == [result(1).trial_id]


def test_a_study_is_named_after_the_run_or_where_it_is_shared_after_the_sweep(tmp_path: Path) -> None:
    sweep = small_sweep(search=budget(1))
    directory = create(tmp_path / "alone", sweep)
    assert run(directory, sweep)[0].study == directory.run_id
    shared = {"storage": f"sqlite:///{tmp_path}/study.db"}
    assert run(create(tmp_path / "shared", sweep), sweep, **shared)[0].study == "small"
    assert run(create(tmp_path / "named", sweep), sweep, **shared, study="own")[0].study == "own"


def test_a_storage_that_fails_in_a_search_is_named(tmp_path: Path) -> None:
    class Lost(FakeRunner):
        def run(self, trial: TrialSpec, **_: Any) -> Record:
            cause = sqlite3.DatabaseError("database disk image is malformed")
            raise sqlalchemy.exc.DatabaseError("SELECT 1", {}, cause)

    url = f"sqlite:///{tmp_path}/study.db"
    with pytest.raises(StudyStorageError, match=rf"cannot use storage {url}: .* is malformed"):
        run(create(tmp_path, SWEEP), SWEEP, Lost(), storage=url)


def test_a_storage_that_fails_when_the_study_is_opened_is_named(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    relational_storage(f"sqlite:///{file}")
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    with pytest.raises(StudyStorageError, match=r"cannot use storage sqlite:///.*readonly"):
        run(create(tmp_path, SWEEP), SWEEP, storage=url)


def test_a_trial_lasts_for_its_own_time_twice_and_for_its_reference() -> None:
    run_of_three = make_trial(world_size=3, timeout=10).run
    assert longest_trial(run_of_three) == 2 * 10 + 4 * 3 * 10
