"""Stand-ins: runners that measure nothing, a simulation, trials that were seen, and an ear for events."""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import FrozenTrial

from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.launch.events import Watch
from zbench.record.record import Failure, MemoryPeaks, Record, Timing
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune import session
from zbench.tune.ledger import trial_at
from zbench.tune.objective import Score
from zbench.tune.space import Point, Space

from .synthetic import Machine

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


class FakeRunner:
    """Returns what the synthetic machine would leave; optionally slow, and keeps a log of what it began.

    outcomes: what becomes of some points, as (axes, outcome) pairs; a pair matches points that hold its axes.
    """

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        log: Path | None = None,
        outcomes: Sequence[tuple[dict[str, Any], str]] = (),
    ) -> None:
        self.began: list[tuple[str, int]] = []
        self._machine, self._seconds, self._log, self._outcomes = Machine(3), seconds, log, outcomes

    def has_reference(self, trial: TrialSpec) -> bool:
        """Nothing is verified here."""
        return True

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Nothing is verified here."""
        return None

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        """Return a record of the trial."""
        self.began.append((trial.trial_id, repeat))
        self._write("began", trial.trial_id, repeat)
        time.sleep(self._seconds)
        self._machine.reseed(f"{trial.trial_id}/{repeat}")
        full = {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "overlap_comm": True}
        record = self._machine.record({**full, **trial.engine.model_dump(), **trial.axes}, index=0)
        reason = self._stopped(record, watch)
        known: dict[str, Any] = {"trial_id": trial.trial_id, "repeat": repeat, "axes": trial.axes}
        known |= {"config": trial.config(), "outcome": self._outcome(trial), "run_id": "fake"}
        if reason is not None:
            known |= {"outcome": "timeout", "error": Failure("pruned", reason)}
        elif known["outcome"] != "ok":
            known["error"] = Failure(known["outcome"], f"made to be {known['outcome']}")
        whole = {name: getattr(record, name) for name in Record.__slots__} | known
        if whole["outcome"] != "ok":
            whole |= {"timing": None, "memory": None}
        self._write("ended", trial.trial_id, repeat)
        return Record(**whole)

    def _stopped(self, record: Record, watch: Watch | None) -> str | None:
        if watch is None or record.timing is None:
            return None
        lines = (
            {"phase": "timed", "step": n, "steps": 8, "seconds": record.timing.median_step_s}
            for n in range(1, 9)
        )
        return next((reason for line in lines if (reason := watch(line)) is not None), None)

    def _outcome(self, trial: TrialSpec) -> str:
        for axes, outcome in self._outcomes:
            if axes.items() <= trial.axes.items():
                return outcome
        return "ok"

    def _write(self, what: str, trial_id: str, repeat: int) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(json.dumps([what, os.getpid(), trial_id, repeat]) + "\n")


class Paced(FakeRunner):
    """Every step takes so many seconds as the stage says; peaks: device bytes where not 100."""

    def __init__(self, seconds: dict[int, float], peaks: dict[int, int] | None = None) -> None:
        super().__init__()
        self._paces, self._peaks = seconds, peaks or {}

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        """Return a record of the trial, or of its end by the watch."""
        stage = trial.engine.zero_stage
        seconds, peak = self._paces[stage], self._peaks.get(stage, 100)
        timing = Timing([seconds] * 8, seconds, 1000 / seconds, 1000 / seconds)
        record = replace(super().run(trial, repeat=repeat), timing=timing, memory=MemoryPeaks(peak, 0, peak))
        reason = self._stopped(record, watch)
        if reason is None:
            return record
        return replace(record, outcome="timeout", error=Failure("pruned", reason), timing=None, memory=None)


class Ear:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def estimated(peak: int, **known: Any) -> Estimate:
    """Return an estimate of a step that holds so many bytes on the device."""
    return Estimate(peak, 0, peak, {}, {}, "backward", [], {}, None, 0.0, **known)


def simulating(patch: pytest.MonkeyPatch, ask: Callable[[TrialSpec], SimulationOutcome]) -> None:
    """Have searches ask this function instead of a simulating process."""
    patch.setattr(session, "Simulator", lambda *_, **__: nullcontext(SimpleNamespace(of=ask)))


def seen(space: Space, point: Point, *values: float, failed: bool = False, **margins: float) -> FrozenTrial:
    """Return a trial of a point as a search has seen it: with its values, failed, or running with neither."""
    score = Score(values or None, {"finished": float(failed), **margins}) if values or failed else None
    return trial_at(space, point, score, {})
