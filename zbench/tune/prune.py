"""End a trial whose first steps show that it cannot win."""

import math
from typing import Any

from zbench.launch.events import Watch
from zbench.spec.accumulation import accumulation
from zbench.spec.metrics import Goal
from zbench.spec.trial import TrialSpec

_RATES = ("tokens_per_s", "samples_per_s", "tflops")
_FEWEST_STEPS = 2
_SHARE_OF_STEPS = 0.25
DEFAULT_FACTOR = 2.0


def work_per_step(trial: TrialSpec, goal: Goal) -> float | None:
    """Return what one step achieves, in one unit for all trials; None where time is not the goal."""
    if goal.metric == "median_step_s":
        return 1.0
    if goal.metric not in _RATES:
        return None
    samples = trial.workload.micro_batch_size * trial.run.world_size
    samples *= accumulation(trial.engine, trial.workload).backwards
    return float(samples if goal.metric == "samples_per_s" else samples * trial.workload.sequence_length)


class Pruner:
    """Watches the timed steps of one trial.

    rate_to_beat: work per second of the best feasible and correct trial so far. factor: how many times slower
    is clearly slow. The fastest step so far decides, after a quarter of the steps and at least two, so that
    neither a slow start nor one disturbed step ends a trial.
    """

    def __init__(self, work: float, rate_to_beat: float, factor: float) -> None:
        self._work, self._rate_to_beat, self._factor = work, rate_to_beat, factor
        self._fastest = math.inf

    def __call__(self, line: dict[str, Any]) -> str | None:
        """Take a progress line; return why the trial should end, or None."""
        if line.get("phase") != "timed":
            return None
        self._fastest = min(self._fastest, float(line["seconds"]))
        step, steps = int(line["step"]), int(line["steps"])
        if step >= steps or step < max(_FEWEST_STEPS, math.ceil(_SHARE_OF_STEPS * steps)):
            return None
        slower = self._rate_to_beat * self._fastest / self._work
        if slower < self._factor:
            return None
        return f"pruned after {step} of {steps} steps: {slower:.1f} times slower than the best so far"


def pruner(
    trial: TrialSpec, goals: tuple[Goal, ...], best_rate: float | None, factor: float | None
) -> Watch | None:
    """Return the watch of a trial; None where nothing can be pruned: several goals, or no best yet."""
    if factor is None or best_rate is None or len(goals) != 1:
        return None
    work = work_per_step(trial, goals[0])
    return None if work is None else Pruner(work, best_rate, factor)
