"""Stand-ins for searches: a machine that measures nothing, a simulation, trials that were seen, studies."""

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tests.making import make_record
from tests.world import World
from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.launch.attempts import record_of
from zbench.launch.executor import Attempt, OnLine, ReferenceTask, RepeatTask, Task
from zbench.record.lines import jsonable
from zbench.record.record import Failure, MemoryPeaks, Record, Timing
from zbench.record.store import RunDirectory, find_runs, load_records
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune import session
from zbench.tune.findings import SearchOutcome
from zbench.tune.ledger import Ledger, open_study, trial_at
from zbench.tune.objective import Score
from zbench.tune.session import SearchTask, Session
from zbench.tune.space import Point, Space
from zbench.tune.storage import Heartbeat, Outages, relational_storage

USUAL = {"micro_batch_size": 2, "reduce_bucket_size": 5_000_000}
PARAMETERS = 3_000_000
SECONDS = 0.25
"""How long every repeat is said to take."""
SMALL_AXES: dict[str, Any] = {
    "zero_stage": [0, 1, 2],
    "offload_optimizer": ["none", "cpu"],
    "reduce_bucket_size": [10_000, 100_000, 1_000_000],
}


def small_sweep(**changes: Any) -> SweepSpec:
    """Return a sweep of 15 points: 3 at stage 0, 6 each at stages 1 and 2."""
    data: dict[str, Any] = {
        "name": "small",
        "workload": {"model": "mlp"},
        "run": {"world_size": 2, "repeats": 2, "steps": 8},
        "axes": SMALL_AXES,
        "search": {"method": "tpe", "trials": 40},
    }
    return sweep_from_mapping(data | changes, environ={})


def step_seconds(point: Point) -> float:
    """Return a step's time on a synthetic machine, shaped like ZeRO's but measured nowhere.

    It is compute, communication (a latency per bucket) and update (halved from stage 1, slower offloaded).
    """
    is_sharded = point["zero_stage"] > 0
    communication = 20 + 0.3 * math.ceil(PARAMETERS / point["reduce_bucket_size"]) + 10 * is_sharded
    update = (3 if is_sharded else 6) * (2.5 if point["offload_optimizer"] == "cpu" else 1)
    return (40 * point["micro_batch_size"] ** 0.8 + communication + update) / 1000


def peak_bytes(point: Point) -> int:
    """Return the peak device memory of one rank of the synthetic machine."""
    stage = point["zero_stage"]
    moments = 0 if point["offload_optimizer"] == "cpu" else 8
    state = PARAMETERS * (4 + 4 / (1 + (stage >= 2)) + moments / (1 + (stage >= 1)))
    return int(state) + 8 * point["reduce_bucket_size"] + 8_000_000 * point["micro_batch_size"]


Figures = Callable[[TrialSpec, int], tuple[float, int]]
"""The seconds of a step of a repeat, and the device's peak bytes."""


def synthetic(trial: TrialSpec, repeat: int) -> tuple[float, int]:
    """Return the figures of the synthetic machine; equal calls give equal noise."""
    point = USUAL | trial.engine.model_dump(exclude_none=True) | trial.axes
    noise = random.Random(f"{trial.trial_id}/{repeat}").gauss(0, 0.01)
    return step_seconds(point) * (1 + noise), peak_bytes(point)


def paced(seconds: dict[int, float], peaks: dict[int, int] | None = None) -> Figures:
    """Return figures by the stage; peaks: device bytes where not 100."""

    def figures(trial: TrialSpec, repeat: int) -> tuple[float, int]:
        stage = trial.engine.zero_stage
        return seconds[stage], (peaks or {}).get(stage, 100)

    return figures


class FakeMachine:
    """A script of a `World`: the results of trials on a machine of these figures. Lists the begun repeats.

    outcomes: what becomes of some points, as (axes, outcome) pairs; a pair matches points that hold its axes.
    before_each: called with each repeat; what it raises interrupts the search. seconds: how long a repeat
    really takes. log: a file of what began and ended. references: how each ends, all well if not said.
    """

    def __init__(
        self,
        figures: Figures = synthetic,
        *,
        seconds: float = 0.0,
        log: Path | None = None,
        outcomes: Sequence[tuple[dict[str, Any], str]] = (),
        before_each: Callable[[RepeatTask], object] = lambda _: None,
        references: Iterable[Attempt] = (),
    ) -> None:
        self.began: list[tuple[str, int]] = []
        self._figures, self._seconds, self._log, self._outcomes = figures, seconds, log, outcomes
        self._before_each = before_each
        self._references = iter(references)

    def __call__(self, task: Task, on_line: OnLine) -> Attempt:
        if isinstance(task, ReferenceTask):
            return next(self._references, Attempt("ok"))
        assert isinstance(task, RepeatTask)
        self._before_each(task)
        trial, repeat = task.trial, task.repeat
        self.began.append((trial.trial_id, repeat))
        self._write("began", trial.trial_id, repeat)
        time.sleep(self._seconds)
        seconds, peak = self._figures(trial, repeat)
        lines = ({"phase": "timed", "step": n, "steps": 8, "seconds": seconds} for n in range(1, 9))
        reason = next((reason for line in lines if (reason := on_line(task, line))), None)
        outcome = next((o for axes, o in self._outcomes if axes.items() <= trial.axes.items()), "ok")
        self._write("ended", trial.trial_id, repeat)
        if reason is not None:
            return Attempt("timeout", Failure("pruned", reason), seconds=SECONDS)
        if outcome != "ok":
            failure = Failure(outcome, f"made to be {outcome}")  # type: ignore[arg-type]
            return Attempt(outcome, failure, seconds=SECONDS)  # type: ignore[arg-type]
        rate = trial.workload.micro_batch_size / seconds
        fields: dict[str, Any] = {
            "timing": Timing([seconds] * 8, seconds, 1000 * rate, rate),
            "memory": MemoryPeaks(peak, 0, peak),
        }
        return Attempt("ok", result=jsonable(make_record(**fields)), seconds=SECONDS)

    def record(self, trial: TrialSpec) -> Record:
        """Return the record of a trial."""
        task = RepeatTask(trial)
        return record_of("fake", task, self(task, lambda *_: None), None)

    def _write(self, event: str, trial_id: str, repeat: int) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(json.dumps([event, os.getpid(), trial_id, repeat]) + "\n")


@dataclass(frozen=True)
class Searched:
    """A search that ended: its folder, its world, its outcome and its events."""

    path: Path
    world: World
    outcome: SearchOutcome
    events: list[Any]

    @property
    def began(self) -> list[tuple[str, int]]:
        """The repeats that were run, in order."""
        return self.world.script.began  # type: ignore[no-any-return]

    @property
    def records(self) -> list[Record]:
        """The records of all repeats."""
        return load_records(self.path)

    @property
    def firsts(self) -> list[Record]:
        """The first repeats of these."""
        return [record for record in self.records if record.repeat == 0]

    def told(self, kind: type) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def searched(
    home: Path,
    machine: FakeMachine | World | None = None,
    *,
    kind: str = "kind",
    is_new: bool = False,
    task: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> Searched:
    """Search a small sweep with these changes in `home`, or go on with the first search that is there.

    machine: what trials leave. kind: its fingerprint. is_new: begin another one. task: what else a
    SearchTask has.
    """
    sweep = small_sweep(**changes)
    facts = {"fingerprint": kind, "schema_version": 1}
    if not is_new and (runs := find_runs(home)):
        directory = RunDirectory.open(runs[0])
    else:
        document = sweep_document(sweep)
        directory = RunDirectory.create(home, sweep.name, spec=document, environment=facts)
    world = machine if isinstance(machine, World) else World(machine or FakeMachine())
    events = list[Any]()
    with directory:
        whole = SearchTask(sweep, home, facts, **task)
        outcome = Session(whole, directory, world, events.append).run()
    return Searched(directory.path, world, outcome, events)


def estimated(peak: int) -> Estimate:
    """Return an estimate of a step that holds so many bytes on the device."""
    return Estimate(peak, 0, peak, {}, {}, "backward", [], {}, None)


def simulating(patch: pytest.MonkeyPatch, ask: Callable[[TrialSpec], SimulationOutcome]) -> None:
    """Have searches ask this function instead of a simulating process."""
    patch.setattr(session, "Simulator", lambda *_, **__: nullcontext(SimpleNamespace(of=ask)))


def seen(space: Space, point: Point, *values: float, failed: bool = False, **margins: float) -> FrozenTrial:
    """Return a trial of a point as a search has seen it: with its values, failed, or running with neither."""
    score = Score(values or None, {"finished": float(failed), **margins}) if values or failed else None
    return trial_at(space, point, score, {})


SWEEP = small_sweep()
SPACE = Space(SWEEP)
POINTS = SPACE.points() or []
UNHURRIED = Heartbeat(1, 600)
"""Nobody is given up because the machine is busy: `silence` makes a worker a lost one."""


def storage_of(url: str) -> BaseStorage:
    """Open a journal, or a database."""
    kind, _, path = url.partition(":///")
    return (
        JournalStorage(JournalFileBackend(path)) if kind == "journal" else relational_storage(url, UNHURRIED)
    )


def ledger(
    url: str,
    *,
    sweep: SweepSpec = SWEEP,
    machine: str = "kind",
    outages: Outages | None = None,
    longest: float = 1000.0,
) -> Ledger:
    """Open the study `s` of this storage."""
    pace = None if url.startswith("journal") else 0.1
    study = open_study(storage_of(url), "s", sweep)
    return Ledger(study, Space(sweep), machine, outages or Outages(print), pace=pace, longest=longest)


def trial_of(index: int) -> TrialSpec:
    """Return the trial at a point of the small sweep."""
    trial = SPACE.trial(POINTS[index])
    assert isinstance(trial, TrialSpec)
    return trial


def begin(book: Ledger, index: int) -> Trial | None:
    """Take a point; None where it is taken."""
    return book.begin(POINTS[index], trial_of(index).trial_id)


def begun(book: Ledger, index: int) -> Trial:
    """Take a point that is free."""
    lease = begin(book, index)
    assert lease is not None
    return lease


def result(index: int, **changes: Any) -> Record:
    """Return the record of the trial at a point, the same at every call."""
    return replace(FakeMachine().record(trial_of(index)), **{"elapsed_s": 0.25, **changes})


def silence(url: str, pid: int | None = None) -> None:
    """Make the last signs of life of running trials look years old: of one process, or of all."""
    storage = relational_storage(url)
    running = [
        trial
        for study in storage.get_all_studies()
        for trial in storage.get_all_trials(study._study_id, deepcopy=False, states=(TrialState.RUNNING,))
        if pid in (None, int(trial.user_attrs["worker"].split("/")[1]))
    ]
    with storage.engine.begin() as connection:
        update = "UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00' WHERE trial_id = :id"
        for trial in running:
            connection.execute(sqlalchemy.text(update), {"id": trial._trial_id})
    storage.engine.dispose()


def main(
    home: str,
    log: str,
    seconds: float,
    search: dict[str, Any],
    buckets: int = 0,
    url: str | None = None,
    study: str | None = None,
) -> str | None:
    """Search in `home`, or go on with the search that is there; return the best trial's id.

    buckets: how many sizes the space has where not 3. With a url: a worker of the study.
    """
    sizes = {"reduce_bucket_size": [10_000 * (n + 1) for n in range(buckets)]} if buckets else {}
    task = {"storage": url, "study": study, "is_worker": url is not None, "heartbeat": UNHURRIED}
    machine = FakeMachine(seconds=seconds, log=Path(log))
    search_of_all = searched(Path(home), machine, task=task, search=search, axes=SMALL_AXES | sizes)
    best = search_of_all.outcome.final.best
    return best.trial_id if best else None


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
