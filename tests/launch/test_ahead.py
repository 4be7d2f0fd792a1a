"""A sweep on an executor that runs several repeats at once: as they end, each once, on disk at once."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from zbench.errors import OutOfTimeError
from zbench.job.progress import Watch
from zbench.launch import sweep as sweeps
from zbench.launch.executor import Attempt, RepeatTask, Task
from zbench.launch.sweep import SweepPlan, SweepRun
from zbench.record.record import Record
from zbench.record.store import RunDirectory, load_records
from zbench.spec.expand import Expansion

from .conftest import make_trial
from .mock_executor import MockExecutor

TRIALS = [make_trial(stage=stage) for stage in range(4)]


class Ahead(MockExecutor):
    """Begins what is expected; tasks end in an order drawn from a seed. under_way: how many can begin."""

    runs_ahead = True

    def __init__(self, seed: int = 0, under_way: int = 100) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.expected: list[list[str]] = []
        self.traced: list[bool] = []
        self._rng, self._room = random.Random(seed), under_way

    def expect(self, tasks: Sequence[Task], watch: Watch | None = None) -> None:
        self.expected.append([task.name for task in tasks])
        self.traced += [task.trace for task in tasks if isinstance(task, RepeatTask)]
        self.begun += [task.name for task in tasks]

    def first(self, names: Sequence[str]) -> str:
        return self._rng.choice([name for name in names if name not in self.begun] or list(names))

    def has_begun(self, name: str) -> bool:
        return name in self.begun

    def withdraw(self, names: Sequence[str]) -> list[str]:
        self.begun = [name for name in self.begun if name in list(names)[: self._room]]
        return list(self.begun)

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        if task.name in self.begun:
            self.begun.remove(task.name)
        return super().run(task, watch)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "sweep", spec={}, environment={})


def run(directory: RunDirectory, executor: Ahead, **plan: object) -> list[Record]:
    chosen = SweepPlan(Expansion(plan.pop("trials", TRIALS), []), **plan)  # type: ignore[arg-type]
    SweepRun(chosen, directory, lambda: executor).run()
    return directory.records()


@pytest.mark.parametrize("seed", range(3))
def test_a_round_is_begun_as_a_whole_and_every_repeat_is_recorded_once(
    directory: RunDirectory, seed: int
) -> None:
    executor = Ahead(seed)
    records = run(directory, executor, trace=True)
    references, *rounds = executor.expected
    assert len(references) == 1, "the trials have one reference"
    assert [len(names) for names in rounds] == [len(TRIALS)] * 2
    assert executor.traced == [True] * len(TRIALS) + [False] * len(TRIALS), "one repeat of each is traced"
    wanted = sorted((trial.trial_id, repeat) for trial in TRIALS for repeat in (0, 1))
    assert sorted((record.trial_id, record.repeat) for record in records) == wanted
    assert load_records(directory.path) == records
    assert {record.correctness.verdict for record in records} == {"identical"}
    assert executor.is_closed


def test_what_has_begun_is_finished_when_time_is_up_and_the_rest_waits(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: now[0])

    class Slow(Ahead):
        def run(self, task: Task, watch: Watch | None = None) -> Attempt:
            now[0] += 3.0 if isinstance(task, RepeatTask) else 0.0
            return super().run(task, watch)

    with pytest.raises(OutOfTimeError, match="5 repeats left"):
        run(directory, Slow(under_way=2), max_seconds=2.0)
    kept = directory.records()
    assert len(kept) == 3, "one before the time was up, and the two that were under way"
    records = run(directory, Ahead())
    assert records[:3] == kept
    assert len({(record.trial_id, record.repeat) for record in records}) == len(records) == 8


def test_time_that_is_up_while_the_last_repeats_are_under_way_is_no_failure(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100))
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: next(now))
    once = [trial.model_copy(update={"run": trial.run.model_copy(update={"repeats": 1})}) for trial in TRIALS]
    assert len(run(directory, Ahead(), trials=once, max_seconds=4)) == len(TRIALS)
