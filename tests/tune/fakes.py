"""Stand-ins: a runner that measures nothing, and an ear for what a search says."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zbench.launch.events import Watch
from zbench.record.record import Failure, Record
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec

from .replay.synthetic import Machine

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


class Ear:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]
