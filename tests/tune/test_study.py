"""The search: what it runs, what it leaves out and why, and that it always ends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zbench.estimate.result import Estimate, NotSimulated, SimulationOutcome
from zbench.record.record import Record
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.claims import MemoryClaims
from zbench.tune.history import Observation
from zbench.tune.identity import StudyIdentity, Worker
from zbench.tune.ledger import Ledger, open_study
from zbench.tune.objective import Scorer
from zbench.tune.samplers import Proposer, make_proposer
from zbench.tune.space import Space
from zbench.tune.stop import stopper_of
from zbench.tune.storage import journal_storage
from zbench.tune.study import Search, StudySetup

from .fakes import FakeRunner, small_sweep


class Silent:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.left: list[int] = []

    def began(self, trial: TrialSpec) -> None:
        pass

    def ended(self, trial: TrialSpec, records: Sequence[Record], seconds: float, left: int) -> None:
        self.records += records
        self.left.append(left)


def ledger_of(path: Path, sweep: SweepSpec) -> Ledger:
    space, scorer = Space(sweep), Scorer(sweep.objective)
    study = open_study(journal_storage(path / "journal"), "s", StudyIdentity(sweep), scorer)
    return Ledger(study, space, scorer, MemoryClaims(), Worker.here("kind"))


def search_of(
    path: Path, sweep: SweepSpec, runner: FakeRunner, proposer: Proposer | None = None, **setup: Any
) -> tuple[Search, Ledger, Silent]:
    space, scorer = Space(sweep), Scorer(sweep.objective)
    ledger = ledger_of(path, sweep)
    method = sweep.search.method
    proposer = proposer or make_proposer(space, method, scorer.directions, seed=0, trials=40)
    stopper = stopper_of(sweep.search, scorer, len(space.axes))
    known = {"every_point": True, **setup} if method == "grid" else setup
    ear = Silent()
    run = StudySetup(space, scorer, proposer, stopper, **known)
    return (
        Search(run, ledger, lambda trial, repeat, watch: runner.run(trial, repeat=repeat, watch=watch), ear),
        ledger,
        ear,
    )


def ids(runner: FakeRunner) -> list[str]:
    return [trial_id for trial_id, _ in runner.began]


@pytest.mark.parametrize("method", ["grid", "random", "tpe", "nsga2"])
def test_every_point_runs_once_where_the_budget_allows(tmp_path: Path, method: str) -> None:
    runner = FakeRunner()
    search, ledger, ear = search_of(tmp_path, small_sweep(search={"method": method, "patience": 99}), runner)
    assert search.run() == "every point that can run was tried"
    assert len(ids(runner)) == len(set(ids(runner))) == 15
    assert len(ear.records) == len(ledger.entries()) == 15
    if method == "grid":
        assert set(ear.left) == {0}, "a grid has no budget of which anything could be left"


def test_a_budget_of_trials_is_kept(tmp_path: Path) -> None:
    runner = FakeRunner()
    search, _, ear = search_of(tmp_path, small_sweep(search={"method": "tpe", "trials": 4}), runner)
    assert search.run() == "the budget of 4 trials is spent"
    assert len(runner.began) == 4
    assert ear.left == [3, 2, 1, 0]


def test_what_an_earlier_process_finished_is_not_run_again(tmp_path: Path) -> None:
    first, second = FakeRunner(), FakeRunner()
    search_of(tmp_path, small_sweep(search={"method": "tpe", "trials": 6}), first)[0].run()
    search_of(tmp_path, small_sweep(search={"method": "tpe", "trials": 10}), second)[0].run()
    assert len(first.began) == 6
    assert len(second.began) == 4
    assert not set(ids(first)) & set(ids(second))


def test_an_interrupted_search_asks_for_the_same_points_as_an_undisturbed_one(tmp_path: Path) -> None:
    whole, parts = FakeRunner(), FakeRunner()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    search_of(tmp_path / "a", small_sweep(search={"method": "tpe", "trials": 10}), whole)[0].run()
    for trials in (3, 7, 10):
        search_of(tmp_path / "b", small_sweep(search={"method": "tpe", "trials": trials}), parts)[0].run()
    assert ids(parts) == ids(whole)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_trial_that_is_interrupted_is_free_again(tmp_path: Path, error: type[BaseException]) -> None:
    class Interrupted(FakeRunner):
        def run(self, trial: TrialSpec, **_: Any) -> Record:
            raise error

    search, ledger, _ = search_of(tmp_path, small_sweep(), Interrupted())
    with pytest.raises(error):
        search.run()
    assert ledger.entries() == []


def test_crashes_and_wrong_results_do_not_stop_the_search(tmp_path: Path) -> None:
    outcomes = [({"zero_stage": 1}, "crashed"), ({"zero_stage": 2, "offload_optimizer": "cpu"}, "timeout")]
    runner = FakeRunner(outcomes=outcomes)
    search, ledger, _ = search_of(tmp_path, small_sweep(search={"method": "tpe", "patience": 99}), runner)
    search.run()
    feasible = [
        e for e in ledger.entries() if e.observation.score is not None and e.observation.score.feasible
    ]
    assert len(ledger.entries()) == 15
    assert len(feasible) == 15 - 6 - 3


def test_larger_points_than_one_out_of_memory_are_recorded_and_not_run(tmp_path: Path) -> None:
    axes = {"micro_batch_size": [1, 2, 4, 8, 16], "zero_stage": [1, 2]}
    outcomes = [({"micro_batch_size": 4, "zero_stage": 1}, "oom")]
    runner = FakeRunner(outcomes=outcomes)
    search, _, ear = search_of(tmp_path, small_sweep(axes=axes, search={"method": "grid"}), runner)
    search.run()
    implied = [r for r in ear.records if r.error is not None and r.error.kind == "implied"]
    assert sorted(r.axes["micro_batch_size"] for r in implied) == [8, 16]
    assert all((r.outcome, r.repeat, r.axes["zero_stage"]) == ("oom", 0, 1) for r in implied)
    assert len(runner.began) == 8, "three sizes at stage 1, all five at stage 2"


def test_they_run_when_asked(tmp_path: Path) -> None:
    axes = {"micro_batch_size": [1, 2, 4, 8, 16], "zero_stage": [1, 2]}
    runner = FakeRunner(outcomes=[({"micro_batch_size": 4, "zero_stage": 1}, "oom")])
    sweep = small_sweep(axes=axes, search={"method": "grid"})
    search_of(tmp_path, sweep, runner, imply_oom=False)[0].run()
    assert len(runner.began) == 10


def test_points_recorded_without_being_run_cost_no_budget(tmp_path: Path) -> None:
    axes = {"micro_batch_size": [1, 2, 4, 8, 16], "zero_stage": [1]}
    runner = FakeRunner(outcomes=[({"micro_batch_size": 2}, "oom")])
    sweep = small_sweep(axes=axes, search={"method": "grid", "trials": 2})
    search_of(tmp_path, sweep, runner)[0].run()
    assert len(runner.began) == 2


def simulated(trial: TrialSpec) -> SimulationOutcome:
    """Stage 0 cannot be simulated; the others need a MiB for each sample."""
    if trial.engine.zero_stage == 0:
        return NotSimulated("made not to be")
    return Estimate(trial.workload.micro_batch_size << 20, 0, 0, {}, {}, "backward", [], {}, None, 0.0)


def test_what_cannot_fit_by_the_simulation_is_left_out_and_named(tmp_path: Path) -> None:
    axes = {"micro_batch_size": [1, 2, 4, 8, 16, 32, 64, 128], "zero_stage": [0, 1, 2]}
    objective = {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 29Mi"}}
    sweep = small_sweep(
        axes=axes, objective=objective, search={"method": "random", "trials": 100, "patience": 99}
    )
    search, ledger, _ = search_of(tmp_path, sweep, FakeRunner(), simulate=simulated)
    assert search.run() == "every point was tried but 6 that cannot fit by the simulation"
    assert len(ledger.entries()) == 18
    assert "needs 32 MiB by the simulation, the limit is 29 MiB" in search.predicted_oom.values()
    for entry in ledger.entries():
        size, stage = entry.point["micro_batch_size"], entry.point["zero_stage"]
        assert entry.records[0].simulated == ({"peak_device_bytes": size << 20} if stage else {})


def test_a_grid_runs_them_all_the_same(tmp_path: Path) -> None:
    axes = {"micro_batch_size": [1, 2, 4, 8, 16, 32, 64, 128], "zero_stage": [0, 1, 2]}
    objective = {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 120M"}}
    sweep = small_sweep(axes=axes, objective=objective, search={"method": "grid"})
    runner = FakeRunner()
    search, _, _ = search_of(tmp_path, sweep, runner)
    assert search.run() == "every point that can run was tried"
    assert len(runner.began) == 24


def test_clearly_slow_trials_are_pruned_and_teach(tmp_path: Path) -> None:
    axes = {"reduce_bucket_size": [1_000, 10_000, 100_000, 1_000_000], "zero_stage": [1, 2]}
    endless = {"method": "tpe", "trials": 100, "patience": 99}
    sweep = small_sweep(axes=axes, search=endless, engine={"reduce_bucket_size": 1_000_000})
    search, ledger, _ = search_of(tmp_path, sweep, FakeRunner(), prune_factor=2.0)
    search.run()
    pruned = [
        e for e in ledger.entries() if e.records[0].error is not None and e.records[0].error.kind == "pruned"
    ]
    assert pruned
    assert {e.point["reduce_bucket_size"] for e in pruned} <= {1_000, 10_000}
    assert all(e.observation.score is not None and not e.observation.score.feasible for e in pruned)


def test_a_flattened_search_ends_before_its_budget(tmp_path: Path) -> None:
    runner = FakeRunner()
    sweep = small_sweep(search={"method": "random", "trials": 100, "patience": 3, "min_gain": 0.5})
    assert "brought no gain" in search_of(tmp_path, sweep, runner)[0].run()
    assert len(runner.began) < 15


def test_the_best_earlier_points_come_first(tmp_path: Path) -> None:
    sweep = small_sweep(search={"method": "grid", "trials": 4})
    space, scorer = Space(sweep), Scorer(sweep.objective)
    points = space.points() or []
    priors = []
    for value, point in enumerate(points):
        trial = space.trial(point)
        assert isinstance(trial, TrialSpec)
        record = FakeRunner().run(trial)
        score = scorer.score([record])
        margins = {"peak": 1.0} if value == 10 else score.margins
        priors.append(Observation(point, type(score)((float(value if value != 10 else 99),), margins)))
    runner = FakeRunner()
    search, ledger, _ = search_of(tmp_path, sweep, runner, priors=priors)
    search.run()
    assert [entry.point for entry in ledger.entries()] == [*points[:-4:-1], points[0]]
