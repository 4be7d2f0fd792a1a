"""Trials and records for tests, with ordinary values where a test does not care."""

from typing import Any

from zbench.record.record import Correctness, MemoryPeaks, Record, Timing, VerdictName
from zbench.spec.trial import TrialSpec


def make_trial(
    engine: dict[str, Any] | None = None,
    *,
    workload: dict[str, Any] | None = None,
    verify: str = "full",
    **run: Any,
) -> TrialSpec:
    """Return a trial; further keywords are keys of `run`."""
    return TrialSpec.model_validate(
        {"workload": workload or {}, "run": run, "engine": engine or {}, "verify": {"mode": verify}}
    )


def make_record(
    trial_id: str = "aaaaaaaaaaaa",
    repeat: int = 0,
    rate: float = 100.0,
    *,
    verdict: VerdictName = "identical",
    peak: int = 100,
    **changes: Any,
) -> Record:
    """Return an `ok` record of `rate` tokens a second; further keywords replace fields."""
    fields: dict[str, Any] = {
        "run_id": "run",
        "trial_id": trial_id,
        "repeat": repeat,
        "axes": {"zero_stage": 1},
        "config": {"run": {"world_size": 2}},
        "outcome": "ok",
        "timing": Timing([1 / rate], 1 / rate, rate, rate),
        "memory": MemoryPeaks(peak, 0, 5000),
        "correctness": Correctness(verdict, 1.0),
    }
    return Record(**(fields | changes))
