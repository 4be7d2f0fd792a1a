"""Stand-ins: runners that measure nothing, searches by them, a simulation, and trials that were seen."""

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from optuna.trial import FrozenTrial

from tests.launch.mock_executor import MockExecutor
from tests.making import make_record
from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.job.progress import Watch
from zbench.launch.trial import Repeat
from zbench.record.record import Failure, MemoryPeaks, Record, Timing
from zbench.record.store import RunDirectory, find_runs, load_records
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune import session
from zbench.tune.findings import SearchOutcome
from zbench.tune.ledger import trial_at
from zbench.tune.objective import Score
from zbench.tune.session import SearchTask, Session
from zbench.tune.space import Point, Space

USUAL = {"micro_batch_size": 2, "reduce_bucket_size": 5_000_000}
PARAMETERS = 3_000_000
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
    stage, moments = point["zero_stage"], 0 if point["offload_optimizer"] == "cpu" else 8
    state = PARAMETERS * (4 + 4 / (1 + (stage >= 2)) + moments / (1 + (stage >= 1)))
    return int(state) + 8 * point["reduce_bucket_size"] + 8_000_000 * point["micro_batch_size"]


class FakeRunner:
    """Returns what the synthetic machine would leave; optionally slow, and keeps a log of what it began.

    outcomes: what becomes of some points, as (axes, outcome) pairs; a pair matches points that hold its axes.
    heats: the trials that took turns, by their axes.
    """

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        log: Path | None = None,
        outcomes: Sequence[tuple[dict[str, Any], str]] = (),
    ) -> None:
        self.began: list[tuple[str, int]] = []
        self.expected: list[tuple[int, int]] = []
        self.executor = MockExecutor()
        self.takes_turns, self.heats = False, []  # type: ignore[var-annotated]
        self._seconds, self._log, self._outcomes = seconds, log, outcomes

    def has_reference(self, trial: TrialSpec) -> bool:
        """Nothing is verified here."""
        return True

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Nothing is verified here."""
        return None

    def most_bytes(self, trial: TrialSpec) -> float:
        """Need nothing."""
        return 0

    def expect(self, repeats: Sequence[Repeat], *, watch: Watch | None = None) -> None:
        """Note how many had begun."""
        self.expected += [(repeat, len(self.began)) for _, repeat in repeats]

    def run_heat(
        self,
        trials: Sequence[TrialSpec],
        repeat: int,
        watch: Callable[[TrialSpec], Watch],
        lot: object,
        *,
        alone: bool,
    ) -> Iterator[tuple[TrialSpec, Record]]:
        """Yield a record of each trial."""
        self.heats.append((repeat, [trial.trial_id for trial in trials]))
        for trial in trials:
            yield trial, self.run(trial, repeat=repeat, watch=watch(trial))

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        """Return a record of the trial, or of its end by the watch."""
        self.began.append((trial.trial_id, repeat))
        self._write("began", trial.trial_id, repeat)
        began = time.monotonic()
        time.sleep(self._seconds)
        seconds, peak = self.figures(trial, repeat)
        lines = ({"phase": "timed", "step": n, "steps": 8, "seconds": seconds} for n in range(1, 9))
        reason = next((reason for line in lines if watch and (reason := watch(line))), None)
        outcome = next((o for axes, o in self._outcomes if axes.items() <= trial.axes.items()), "ok")
        self._write("ended", trial.trial_id, repeat)
        about: dict[str, Any] = {"run_id": "fake", "axes": trial.axes, "config": trial.config()}
        about |= {"memory": MemoryPeaks(peak, 0, peak), "elapsed_s": time.monotonic() - began}
        rate = trial.workload.micro_batch_size / seconds
        about |= {"timing": Timing([seconds] * 8, seconds, 1000 * rate, rate)}
        record = make_record(trial.trial_id, repeat, **about)
        if reason is None and outcome == "ok":
            return record
        error = Failure("pruned", reason) if reason else Failure(outcome, f"made to be {outcome}")
        ended = "timeout" if reason else outcome
        return replace(record, outcome=ended, error=error, timing=None, memory=None)  # type: ignore[arg-type]

    def figures(self, trial: TrialSpec, repeat: int) -> tuple[float, int]:
        """Return the seconds of a step and the device's peak bytes; equal calls give equal noise."""
        point = USUAL | trial.engine.model_dump(exclude_none=True) | trial.axes
        noise = random.Random(f"{trial.trial_id}/{repeat}").gauss(0, 0.01)
        return step_seconds(point) * (1 + noise), peak_bytes(point)

    def _write(self, what: str, trial_id: str, repeat: int) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(json.dumps([what, os.getpid(), trial_id, repeat]) + "\n")


class Paced(FakeRunner):
    """Every step takes so many seconds as the stage says; peaks: device bytes where not 100."""

    def __init__(self, seconds: dict[int, float], peaks: dict[int, int] | None = None) -> None:
        super().__init__()
        self._paces, self._peaks = seconds, peaks or {}

    def figures(self, trial: TrialSpec, repeat: int) -> tuple[float, int]:
        """Return the stage's."""
        stage = trial.engine.zero_stage
        return self._paces[stage], self._peaks.get(stage, 100)


@dataclass(frozen=True)
class Searched:
    """A search that ended: where, what it ran, what it says and what it told meanwhile."""

    path: Path
    runner: FakeRunner
    outcome: SearchOutcome
    events: list[Any]

    @property
    def records(self) -> list[Record]:
        """The records of what was run."""
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
    runner: FakeRunner | None = None,
    *,
    machine: str = "kind",
    task: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> Searched:
    """Search a small sweep with these changes in `home`, or go on with the search that is there.

    machine: its fingerprint. task: what else a SearchTask has.
    """
    sweep, facts = small_sweep(**changes), {"fingerprint": machine, "schema_version": 1}
    if runs := find_runs(home):
        directory = RunDirectory.open(runs[0])
    else:
        document = sweep_document(sweep)
        directory = RunDirectory.create(home, sweep.name, spec=document, environment=facts)
    runner, events = runner or FakeRunner(), list[Any]()
    with directory:
        whole = SearchTask(sweep, home, facts, **task)
        outcome = Session(whole, directory, runner, events.append).run()  # type: ignore[arg-type]
    return Searched(directory.path, runner, outcome, events)


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
