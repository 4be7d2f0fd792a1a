"""A search from start to finish, with a machine that measures nothing: its trials and its messages."""

import itertools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, failed
from zbench.analysis.ranking import by_figure, rank
from zbench.errors import UsageError
from zbench.estimate.result import NotSimulated, SimulationOutcome
from zbench.launch.events import Notice, SweepStarted, TrialFinished, TrialStarted
from zbench.launch.executor import Attempt, RepeatTask
from zbench.record.summary import summarize
from zbench.spec.trial import TrialSpec
from zbench.tune.storage import JOURNAL

from .fakes import (
    SECONDS,
    SMALL_AXES,
    FakeMachine,
    Searched,
    estimated,
    paced,
    searched,
    simulating,
    small_sweep,
)

STAGES = {"zero_stage": [0, 1, 2]}


def limited(bound: str, metric: str = "peak_device_bytes") -> dict[str, Any]:
    return {"maximize": "tokens_per_s", "subject_to": {metric: bound}}


def first_ids(search: Searched) -> list[str]:
    return [trial_id for trial_id, repeat in search.began if repeat == 0]


def budget(trials: int, method: str = "tpe", **search: Any) -> dict[str, Any]:
    return {"method": method, "trials": trials, "patience": 99, **search}


@pytest.mark.parametrize(
    "method", ["grid", "tpe", *(pytest.param(name, marks=pytest.mark.check) for name in ("random", "nsga2"))]
)
def test_every_point_runs_once_where_the_budget_allows(tmp_path: Path, method: str) -> None:
    search = searched(tmp_path, search=budget(40, method))
    assert search.outcome.stopped == "every point that can run was tried"
    assert len(first_ids(search)) == len(set(first_ids(search))) == len(search.firsts) == 15


def test_every_finished_trial_is_recorded_and_told(tmp_path: Path) -> None:
    search = searched(tmp_path, search=budget(8))
    assert search.outcome.stopped == "the budget of 8 trials is spent"
    records = search.records
    ended = search.told(TrialFinished)
    runs = search.began
    assert {(r.trial_id, r.repeat) for r in records} == set(runs)
    assert len(search.firsts) == 8
    assert all(record.run_id == search.path.name for record in records)
    assert [event.record for event in ended] == records
    assert [(event.trial.trial_id, event.repeat) for event in search.told(TrialStarted)] == runs
    assert [event.trial.trial_id for event in ended] == [record.trial_id for record in records]
    assert {event.seconds for event in ended} == {SECONDS}
    assert [event.left for event in ended] == [*range(7, -1, -1), *[0] * (len(ended) - 8)]


def test_the_announced_best_is_the_one_that_every_table_marks(tmp_path: Path) -> None:
    search = searched(tmp_path)
    marked = by_figure(summarize(search.records), small_sweep().objective)[0]
    final = search.outcome.final
    assert final.best is not None
    assert final.best.trial_id == marked.trial_id
    assert {record.repeat for record in marked.records} == {0, 1, 2}
    assert final.runner_up is not None
    assert search.outcome.front == [], "of a single goal"
    assert set(search.outcome.importance) == {"zero_stage", "offload_optimizer", "reduce_bucket_size"}


NEAR = paced({0: 0.1, 1: 0.101, 2: 0.102})


def test_finalists_have_the_repeats_of_the_same_heats(tmp_path: Path) -> None:
    """Their memory is known from the search; of the yardsticks none is wanted here."""
    world = World(FakeMachine(NEAR), takes_turns=True)
    run = {"world_size": 2, "repeats": 2, "steps": 8, "yardstick": "none"}
    search = searched(tmp_path, world, axes=STAGES, run=run)
    assert [{task.repeat for task in heat} for heat in world.heats] == [{1}, {2}]
    assert all(len({task.trial.trial_id for task in heat}) == 3 for heat in world.heats)
    assert len(search.records) == 9
    ranking = rank(summarize(search.records), small_sweep().objective)
    assert ranking.recommended is not None
    assert {record.run_id for record in search.records} == {search.path.name}


def cut_after(trials: int) -> FakeMachine:
    """Return a machine where the next trial is interrupted."""
    countdown = itertools.count(trials, -1)

    def before_each(_: RepeatTask) -> None:
        if next(countdown) == 0:
            raise KeyboardInterrupt

    return FakeMachine(before_each=before_each)


@pytest.mark.parametrize(
    ("method", "trials", "cuts"),
    [
        ("tpe", 6, (2, 7)),
        pytest.param("tpe", 6, (1, 3, 4, 5, 6, 8, 9), marks=pytest.mark.check),
        pytest.param("nsga2", 14, (5, 10, 13), marks=pytest.mark.check),
    ],
)
def test_a_search_cut_off_anywhere_resumes_to_the_same_end(
    tmp_path: Path, method: str, trials: int, cuts: Collection[int]
) -> None:
    def end_of(search: Searched) -> tuple[object, ...]:
        final = search.outcome.final
        assert final.best is not None
        return final.best.trial_id, final.lead, [(r.trial_id, r.repeat) for r in search.records]

    undisturbed = searched(tmp_path / "whole", search=budget(trials, method))
    for cut in cuts:
        with pytest.raises(KeyboardInterrupt):
            searched(tmp_path / str(cut), cut_after(cut), search=budget(trials, method))
        resumed = searched(tmp_path / str(cut), search=budget(trials, method))
        assert end_of(resumed) == end_of(undisturbed)


@pytest.mark.parametrize("damage", [None, b'{"op_code": 4'])
def test_the_journal_is_made_from_the_records(tmp_path: Path, damage: bytes | None) -> None:
    search = searched(tmp_path, search=budget(6))
    before = search.records
    journal = search.path / JOURNAL
    journal.unlink() if damage is None else journal.write_bytes(damage)
    resumed = searched(tmp_path, search=budget(6))
    assert (resumed.began, resumed.records) == ([], before)


@pytest.mark.parametrize(("trials", "rest"), [(5, 2), (2, 0)])
def test_a_resumed_search_tells_finished_and_remaining_trials(tmp_path: Path, trials: int, rest: int) -> None:
    done = searched(tmp_path, search=budget(3)).records
    (started,) = searched(tmp_path, search=budget(trials)).told(SweepStarted)
    assert (started.finished, started.repeats) == (done, rest)


def simulated(trial: TrialSpec) -> SimulationOutcome:
    """Stage 0 cannot be simulated; the others need a MiB for each sample."""
    if trial.engine.zero_stage == 0:
        return NotSimulated("made not to be")
    return estimated(trial.workload.micro_batch_size << 20)


def test_points_too_large_by_the_simulation_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulating(monkeypatch, simulated)
    axes = {"micro_batch_size": [1, 2, 4, 8, 16, 32, 64, 128], "zero_stage": [0, 1, 2]}
    limit = limited("<= 29Mi")
    search = searched(tmp_path, axes=axes, objective=limit, search=budget(100, "random"))
    assert search.outcome.stopped == "every point was tried but 6 that cannot fit by the simulation"
    reasons = search.outcome.predicted_oom.values()
    assert "needs 32 MiB by the simulation, the limit is 29 MiB" in reasons
    assert "points are simulated first" in search.told(Notice)[0].text
    assert len(search.firsts) == 18


def test_a_search_ends_after_two_hundred_points_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulating(monkeypatch, lambda _: estimated(1 << 40))
    axes = {"reduce_bucket_size": {"low": 1e4, "high": 1e8}}
    search = searched(tmp_path, axes=axes, objective=limited("<= 1Gi"), search=budget(40, "random"))
    assert search.outcome.stopped == "every point was tried but 200 that cannot fit by the simulation"
    assert first_ids(search) == [], "nothing that is known to be too large is run"


def test_clearly_slow_trials_are_pruned_and_teach(tmp_path: Path) -> None:
    axes = {"reduce_bucket_size": [1_000, 10_000, 100_000, 1_000_000], "zero_stage": [1, 2]}
    engine = {"reduce_bucket_size": 1_000_000}
    records = searched(tmp_path, axes=axes, engine=engine, search=budget(100)).firsts
    pruned = [r.axes["reduce_bucket_size"] for r in records if r.error and r.error.kind == "pruned"]
    assert pruned
    assert set(pruned) <= {1_000, 10_000}


@pytest.mark.parametrize(
    ("search", "outcome"),
    [
        ({"method": "random"}, "timeout"),
        ({"method": "grid"}, "ok"),
        ({"method": "grid", "prune_slower_than": 1.5}, "timeout"),
    ],
)
def test_a_search_ends_slow_trials_a_grid_only_when_asked(
    tmp_path: Path, search: dict[str, Any], outcome: str
) -> None:
    axes = {"zero_stage": [1]}
    include = [{"zero_stage": 0}]
    records = searched(
        tmp_path, FakeMachine(paced({0: 1.0, 1: 2.5})), axes=axes, include=include, search=search
    ).firsts
    assert {r.axes["zero_stage"]: r.outcome for r in records} == {0: "ok", 1: outcome}


def test_a_trial_that_breaks_a_bound_makes_no_other_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulating(monkeypatch, lambda _: NotSimulated("made not to be"))
    machine = FakeMachine(paced({0: 1.0, 1: 2.5, 2: 6.0}, {0: 300}))
    search = {"method": "grid", "prune_slower_than": 2.0}
    records = searched(tmp_path, machine, axes=STAGES, objective=limited("<= 200"), search=search).firsts
    assert [record.outcome for record in records] == ["ok", "ok", "timeout"]


def test_a_flattened_search_ends_before_its_budget(tmp_path: Path) -> None:
    patience = {"method": "random", "trials": 100, "patience": 3, "min_gain": 0.5}
    search = searched(tmp_path, search=patience)
    assert "brought no gain" in search.outcome.stopped
    assert len(search.firsts) < 15


def test_the_front_holds_only_trials_that_meet_every_bound(tmp_path: Path) -> None:
    goals = {"maximize": "tokens_per_s", "minimize": "peak_device_bytes"}
    goals |= {"subject_to": {"median_step_s": ">= 1.5"}}
    machine = FakeMachine(paced({0: 1.0, 1: 2.0, 2: 3.0}, {0: 50, 1: 200, 2: 100}))
    search = searched(tmp_path, machine, axes=STAGES, objective=goals, search={"method": "random"})
    stages = {record.trial_id: record.axes["zero_stage"] for record in search.records}
    assert [stages[trial_id] for trial_id in search.outcome.front] == [1, 2], "the faster first"


def test_points_of_include_run_first(tmp_path: Path) -> None:
    included = {"zero_stage": 1, "overlap_comm": False}
    records = searched(tmp_path, include=[included], search={"method": "tpe", "trials": 3}).firsts
    assert records[0].axes["overlap_comm"] is False


BAD_INPUT = failed("usage", "no such file: none.txt")


def test_bad_input_ends_a_search_only_before_the_first_trial(tmp_path: Path) -> None:
    """Each of the two points has a reference of its own."""
    keys: dict[str, Any] = {"axes": {"micro_batch_size": [2, 4]}, "search": {"trials": 2, "method": "random"}}
    with pytest.raises(UsageError, match=r"no such file: none\.txt"):
        searched(tmp_path / "first", FakeMachine(references=[BAD_INPUT]), **keys)
    later = FakeMachine(references=[Attempt("ok"), BAD_INPUT])
    search = searched(tmp_path / "later", later, **keys)
    assert search.outcome.stopped == "the budget of 2 trials is spent"
    assert [record.error and record.error.kind for record in search.firsts] == [None, "usage"]


def test_a_search_begins_where_earlier_runs_of_its_sweep_ended(tmp_path: Path) -> None:
    first = searched(tmp_path, search=budget(15))
    best = first.outcome.final.best
    assert best is not None
    second = searched(tmp_path, is_new=True, search=budget(3))
    assert first_ids(second)[0] == best.trial_id
    assert [n.text for n in second.told(Notice)] == [
        "15 trials of earlier runs of this sweep teach the search"
    ]
    assert len(second.firsts) == 3, "what taught is no result of this search"
    narrowed = SMALL_AXES | {"zero_stage": [int(not best.axes["zero_stage"]), 2]}
    third = searched(tmp_path, is_new=True, search=budget(3), axes=narrowed)
    assert all(record.axes["zero_stage"] in narrowed["zero_stage"] for record in third.records)
    assert "teach the search" in third.told(Notice)[0].text


@pytest.mark.parametrize(("kind", "method"), [("other", "tpe"), ("kind", "random")])
def test_neither_other_machines_nor_random_search_are_taught(tmp_path: Path, kind: str, method: str) -> None:
    searched(tmp_path, search=budget(5))
    assert not searched(tmp_path, kind=kind, is_new=True, search=budget(3, method)).told(Notice)
