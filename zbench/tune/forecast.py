"""What is known of a trial before it ends: its memory by the simulation, and that it is clearly too slow."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.job.progress import Watch
from zbench.launch.disturbance import LoadBesides
from zbench.spec.metrics import STEP_TIMES, Goal
from zbench.spec.trial import TrialSpec, samples_per_step
from zbench.units import format_bytes

Ask = Callable[[TrialSpec], SimulationOutcome]

PRUNE_FACTOR = 2.0
_SAFETY = 1.1
"""A trial is left out only if above the limit by this factor, if DeepSpeed is estimated by rules, or if the
device is chosen later, and simulated as a CPU."""
_RATES = ("tokens_per_s", "samples_per_s", "tflops")
_FEWEST_STEPS = 2
_SHARE_OF_STEPS = 0.25


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Bytes that a trial may take. allocated: by the metric `peak_device_bytes`. reserved: by torch's
    allocator, as `run.memory_limit` has it.
    """

    allocated: float = math.inf
    reserved: float = math.inf


def too_large(ask: Ask, trial: TrialSpec, limits: MemoryLimits) -> str | None:
    """Return why a trial cannot fit; None where it may, or cannot be simulated."""
    estimate = ask(trial)
    if not isinstance(estimate, Estimate):
        return None
    is_exact = trial.run.device != "auto" and trial.engine.engine != "deepspeed"
    for needed, limit in (
        (estimate.peak_device_bytes, limits.allocated),
        (estimate.least_device_bytes, limits.reserved),
    ):
        if needed > (limit if is_exact else limit * _SAFETY):
            return f"needs {format_bytes(needed)} by the simulation, the limit is {format_bytes(limit)}"
    return None


def work_per_step(trial: TrialSpec, goal: Goal) -> float | None:
    """Return what one step achieves, in one unit for all trials; None where time is not the goal."""
    if goal.metric in (*STEP_TIMES, "steps_per_s"):
        return 1.0
    if goal.metric not in _RATES:
        return None
    samples = samples_per_step(trial)
    return float(samples if goal.metric == "samples_per_s" else samples * trial.workload.sequence_length)


def pruner(
    trial: TrialSpec,
    goals: tuple[Goal, ...],
    best_rate: float,
    factor: float | None,
    load: LoadBesides | None = None,
) -> Watch | None:
    """Return a watch that ends a trial whose timed steps are `factor` times slower than the best one's.

    best_rate: work per second of the best feasible and correct trial so far, 0 before there is one. load:
    what others take from the trial; None: what they take on this machine from its first timed step on.

    The fastest step so far decides, after a quarter of the steps and at least two, so that neither a slow
    start nor one disturbed step ends a trial. No trial ends while other processes take CPU time from it: load
    may slow it more than the best one. None if nothing can be pruned: several goals, or no best yet.
    (Optuna's pruners compare a trial with others at the same step, or with a fixed bound.)
    """
    work = work_per_step(trial, goals[0])
    if factor is None or work is None or not best_rate or len(goals) != 1:
        return None
    fastest = math.inf
    load = load or LoadBesides(trial.run.world_size)

    def watch(line: dict[str, Any]) -> str | None:
        nonlocal fastest
        if line.get("phase") != "timed":
            return None
        load.note(float(line.get("cpu", 0.0)))
        fastest = min(fastest, float(line["seconds"]))
        step, steps = int(line["step"]), int(line["steps"])
        slower = best_rate * fastest / work
        if not max(_FEWEST_STEPS, _SHARE_OF_STEPS * steps) <= step < steps or slower < factor:
            return None
        if load.disturbance().severity > 1:
            return None
        return f"pruned after {step} of {steps} steps: {slower:.1f} times slower than the best so far"

    return watch
