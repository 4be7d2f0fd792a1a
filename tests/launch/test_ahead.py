"""A sweep on an executor that runs several repeats at once: as they end, each once, on disk at once."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.world import World
from zbench.errors import OutOfTimeError
from zbench.launch import sweep as sweeps
from zbench.launch.executor import ReferenceTask, RepeatTask, Vacancy
from zbench.launch.sweep import SweepPlan, run_sweep
from zbench.record.record import Record
from zbench.record.store import RunDirectory, load_records
from zbench.spec.expand import Expansion

from .conftest import make_trial

TRIALS = [make_trial(stage=stage) for stage in range(4)]


def a_queue(at_once: int = 100) -> World:
    """Return a world with a queue of its own, such as SLURM's, that runs so many at once."""
    return World(at_once=at_once, vacancy=Vacancy(math.inf))


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "sweep", spec={}, environment={})


def run(directory: RunDirectory, world: World, **plan: object) -> list[Record]:
    chosen = SweepPlan(Expansion(plan.pop("trials", TRIALS), []), **plan)  # type: ignore[arg-type]
    run_sweep(chosen, directory, lambda: world)
    return directory.records()


def test_a_round_is_begun_as_a_whole_and_every_repeat_is_recorded_once(directory: RunDirectory) -> None:
    world = a_queue()
    records = run(directory, world, trace=True)
    (first, *rest) = [batch.tasks[0] for batch in world.batches]
    assert isinstance(first, ReferenceTask), "the trials have one reference"
    assert world.most_at_once == len(TRIALS)
    traced = [task.trace for task in rest if isinstance(task, RepeatTask)]
    assert traced == [True] * len(TRIALS) + [False] * len(TRIALS), "one repeat of each is traced"
    repeats = sorted((trial.trial_id, repeat) for trial in TRIALS for repeat in (0, 1))
    assert sorted((record.trial_id, record.repeat) for record in records) == repeats
    assert load_records(directory.path) == records
    assert {record.correctness.verdict for record in records} == {"identical"}
    assert world.is_closed


def clocked(monkeypatch: pytest.MonkeyPatch, world: World) -> World:
    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=lambda: world.now))
    return world


def test_what_has_begun_is_finished_when_time_is_up_and_the_rest_waits(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = clocked(monkeypatch, a_queue(at_once=2))
    with pytest.raises(OutOfTimeError, match="5 repeats left"):
        run(directory, world, max_seconds=3.1)
    first_records = directory.records()
    assert len(first_records) == 3, "one before the time was up, and the two that were under way"
    records = run(directory, clocked(monkeypatch, a_queue()))
    assert records[:3] == first_records
    assert len({(record.trial_id, record.repeat) for record in records}) == len(records) == 8
