"""A sweep runs every repeat once, in the order it says, and takes up where it was left."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.world import World
from zbench.errors import OutOfTimeError, UsageError
from zbench.launch.events import Notice, TrialFinished, TrialStarted
from zbench.launch.executor import ReferenceTask, RepeatTask, Vacancy
from zbench.launch.sweep import (
    SweepPlan,
    run_sweep,
    shuffled,
)
from zbench.record.store import RunDirectory, StorageError, load_records
from zbench.spec.expand import Expansion
from zbench.spec.run import slow_update
from zbench.spec.trial import InvalidTrial

from .conftest import make_trial


class Sweep:
    """Runs plans in one run directory and remembers what was told."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
        self.events: list[object] = []
        self.world = World()

    def run(self, *trials, stop_after=None, world=None, **plan):
        """Run the plan; `stop_after` interrupts it when so many repeats have ended."""
        if not isinstance(plan.get("expansion"), Expansion):
            plan["expansion"] = Expansion(list(trials), [])
        self.events = []

        def listen(event):
            self.events.append(event)
            if stop_after is not None and len(self.told(TrialFinished)) == stop_after:
                raise KeyboardInterrupt

        self.world = world or World()
        run_sweep(SweepPlan(**plan), self.directory, lambda: self.world, on_event=listen)
        return self.directory.records()

    def told(self, kind):
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def started(self):
        """Return (stage, repeat) of each repeat in the order they started."""
        return [(event.trial.engine.zero_stage, event.repeat) for event in self.told(TrialStarted)]


@pytest.fixture
def sweep(tmp_path):
    """Return a sweep in an empty run directory."""
    running = Sweep(tmp_path)
    yield running
    running.directory.close()


STAGES = [make_trial(stage=stage) for stage in range(4)]


def test_an_update_without_our_kernels_is_told_at_once(sweep):
    slower = slow_update("NVRTC is missing")
    trials = [make_trial(stage=stage, result={"warnings": [slower, "another"]}) for stage in range(2)]
    sweep.run(*trials)
    first = next(index for index, event in enumerate(sweep.events) if event == Notice(slower))
    assert len([event for event in sweep.events[:first] if isinstance(event, TrialFinished)]) == 0
    assert "another" not in [event.text for event in sweep.told(Notice)]


def keys(records):
    return [(record.trial_id, record.repeat) for record in records]


def test_every_repeat_runs_once_and_is_on_disk(sweep):
    records = sweep.run(*STAGES)
    assert sorted(keys(records)) == sorted((trial.trial_id, repeat) for trial in STAGES for repeat in (0, 1))
    assert load_records(sweep.directory.path) == records
    stages = [stage for stage, _ in sweep.started()]
    assert stages == [n for number in (0, 1) for n in shuffled(range(4), seed=0, round_number=number)]
    assert [repeat for _, repeat in sweep.started()] == [0] * 4 + [1] * 4
    assert [event.left for event in sweep.told(TrialFinished)] == list(range(7, -1, -1))


def test_interrupted_sweep_continues_with_what_is_missing(sweep):
    with pytest.raises(KeyboardInterrupt):
        sweep.run(*STAGES, stop_after=3)
    first_records = sweep.directory.records()
    assert len(first_records) == 3
    records = sweep.run(*STAGES)
    assert records[:3] == first_records
    assert len(sweep.started()) == 5
    assert len(set(keys(records))) == len(records) == 8


def test_out_of_memory_crash_hang_and_invalid_points_leave_the_rest_unaffected(sweep):
    trials = [
        make_trial(do="allocate"),
        make_trial(do="crash"),
        make_trial(do="hang", timeout=0.3),
        make_trial(),
        make_trial(stage=1),
    ]
    invalid = InvalidTrial({"zero_stage": 9}, {"run": {}}, "no such stage", "invalid-id", "engine.zero_stage")
    records = sweep.run(expansion=Expansion(trials, [invalid]))
    outcomes: dict[str, list[str]] = {}
    for record in records:
        outcomes.setdefault(record.trial_id, []).append(record.outcome)
    assert outcomes == {
        trials[0].trial_id: ["oom"],
        trials[1].trial_id: ["crashed"],
        trials[2].trial_id: ["timeout"],
        trials[3].trial_id: ["ok", "ok"],
        trials[4].trial_id: ["ok", "ok"],
        "invalid-id": ["invalid"],
    }


def test_bad_input_of_every_point_is_a_usage_error(sweep):
    trials = [make_trial(reference="bad_input"), make_trial(reference="bad_input", stage=1)]
    invalid = InvalidTrial({}, {"run": {}}, "why", "invalid-id", "key")
    with pytest.raises(UsageError, match="no such module"):
        sweep.run(expansion=Expansion(trials, [invalid]))
    assert not sweep.directory.has_run()
    assert sweep.directory.discard_if_empty()


def test_invalid_points_are_recorded_once(sweep):
    invalid = InvalidTrial({}, {"run": {}}, "why", "invalid-id", "key")
    for _ in range(2):
        sweep.run(expansion=Expansion([make_trial()], [invalid]))
    assert [record.trial_id for record in sweep.directory.records()].count("invalid-id") == 1


def test_references_are_cleared_away_when_all_is_done(sweep):
    with pytest.raises(KeyboardInterrupt):
        sweep.run(*STAGES, stop_after=1)
    assert (sweep.directory.path / "references").exists()
    sweep.run(*STAGES)
    assert sweep.world.script.references == [], "computed before the interruption"
    assert not (sweep.directory.path / "references").exists()


def test_full_disk_while_a_reference_is_computed_stops_the_run_and_resume_verifies_every_row(sweep):
    with pytest.raises(StorageError, match=r"No space left on device.*--resume"):
        sweep.run(*(make_trial(stage=stage, reference="disk_full") for stage in (0, 1)))
    assert sweep.directory.records() == []
    records = sweep.run(*STAGES)
    assert {record.correctness.verdict for record in records} == {"identical"}


def test_full_disk_in_a_trial_stops_the_run_and_records_nothing_of_it(sweep):
    with pytest.raises(StorageError, match="--resume"):
        sweep.run(make_trial(do="disk_full"))
    assert sweep.directory.records() == []
    assert sweep.world.is_closed


@pytest.mark.parametrize(("at_once", "kept"), [(1, 1), (2, 3)])
def test_out_of_time_it_finishes_what_is_under_way_and_goes_on_later(sweep, monkeypatch, at_once, kept):
    clock = SimpleNamespace(monotonic=lambda: sweep.world.now)
    monkeypatch.setattr("zbench.launch.sweep.time", clock)
    world = World(at_once=at_once, vacancy=Vacancy(math.inf if at_once > 1 else 1))
    with pytest.raises(OutOfTimeError, match=f"stopped at --max-time; {8 - kept} repeats left"):
        sweep.run(
            *STAGES, world=world, max_seconds=3.1
        )  # the reference takes 3 s at most, a repeat 1 s at least
    first_records = sweep.directory.records()
    assert len(first_records) == len(sweep.told(TrialFinished)) == kept
    records = sweep.run(*STAGES)
    assert records[:kept] == first_records
    assert len(set(keys(records))) == len(records) == 8


def test_a_queue_begins_a_round_as_a_whole(sweep):
    world = World(at_once=100, vacancy=Vacancy(math.inf))
    records = sweep.run(*STAGES, world=world, trace=True)
    (first, *rest) = [batch.tasks[0] for batch in world.batches]
    assert isinstance(first, ReferenceTask), "the trials have one reference"
    assert world.most_at_once == len(STAGES)
    traced = [task.trace for task in rest if isinstance(task, RepeatTask)]
    assert traced == [True] * len(STAGES) + [False] * len(STAGES), "one repeat of each is traced"
    assert len(set(keys(records))) == len(records) == 8
    assert {record.correctness.verdict for record in records} == {"identical"}
    assert world.is_closed


def test_order_follows_from_seed_and_round_and_no_item_is_always_first():
    items = list(range(50))
    orders = [shuffled(items, seed=seed, round_number=number) for seed, number in ((1, 0), (1, 1), (2, 0))]
    assert orders[0] == shuffled(items, seed=1, round_number=0)
    assert len({tuple(order) for order in (items, *orders)}) == 4
    assert orders[1] == orders[0][::-1], "a drift favours nobody"
    assert shuffled(items, seed=1, round_number=2) not in orders
    firsts = {shuffled(range(4), seed=0, round_number=number)[0] for number in range(40)}
    assert firsts == {0, 1, 2, 3}
