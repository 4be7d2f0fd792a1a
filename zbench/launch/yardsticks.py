"""Yardsticks: tasks that take turns with configurations, to measure the machine's speed and compute alone.

`machine`: fixed native kernels with the trials' ranks and threads. `alone`: the same model and micro-batches
in plain PyTorch on each rank, without communication.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zbench.launch.executor import Attempt, MachineTask, RepeatTask, Task
from zbench.launch.room import bounds_memory_of_alone, uses_cpu
from zbench.record.record import Heat, Record
from zbench.spec.engine import ALONE_KEYS, EngineSpec
from zbench.spec.run import VerifySpec
from zbench.spec.trial import TrialSpec

_PRICE = 3
"""Repeats of configurations for each repeat of `alone`, which takes as long: at most a quarter of all."""


class Yardsticks:
    """The yardsticks of one heat, and their measurements.

    leaves_out_alone: whether some `alone` does not run in this heat, to save time.
    """

    def __init__(
        self, trials: Sequence[TrialSpec], repeat: int, credit: Counter[str], *, has_room: bool = True
    ) -> None:
        """trials: the configurations of the heat. credit: by the ID of each `alone`, the repeats
        that have shared it since it ran last; with _PRICE of them it runs.

        has_room: whether `alone` may run. On a GPU it does beside a trial that shows what it needs.
        """
        self._machine: dict[str, MachineTask] = {}
        self._alone: dict[str, RepeatTask] = {}
        self._results: dict[str, dict[str, Any]] = {}
        for trial in trials:
            if trial.run.wants("machine"):
                task = MachineTask(trial)
                self._machine.setdefault(task.name, task)
        pairs = [(alone_trial(trial), trial) for trial in trials if has_room and trial.run.wants("alone")]
        shared = {
            alone.trial_id: alone
            for alone, trial in pairs
            if uses_cpu(trial.run.device) or bounds_memory_of_alone(trial)
        }
        credit.update(alone.trial_id for alone, _ in pairs if alone.trial_id in shared)
        for trial_id, trial in shared.items():
            if credit[trial_id] >= _PRICE:
                credit[trial_id] -= _PRICE
                self._alone[trial_id] = RepeatTask(trial, repeat)
        self.leaves_out_alone = len(self._alone) < len(shared)

    @property
    def tasks(self) -> list[RepeatTask | MachineTask]:
        """The yardsticks' tasks, which take turns with the configurations."""
        return [*self._machine.values(), *self._alone.values()]

    def take(self, task: Task, attempt: Attempt) -> bool:
        """Keep a yardstick's measurement; return False for the task of a configuration."""
        if task not in self.tasks:
            return False
        if attempt.result is not None:
            self._results[task.name] = attempt.result
        return True

    def applied(self, record: Record, trial: TrialSpec, name: str) -> Record:
        """Return a configuration's record with the name of its heat and its yardsticks' measurements."""
        if record.heat is None:
            return record
        heat = replace(record.heat, name=name)
        machine = self._result(self._machine.get(MachineTask(trial).name))
        if machine is not None:
            heat = replace(heat, machine=machine["seconds"], yardstick=machine["version"])
        alone = self._result(self._alone.get(alone_trial(trial).trial_id))
        if alone is not None:
            heat = replace(heat, alone=alone["heat"]["turn_seconds"])
        timing = record.timing
        if timing is not None and heat.alone:
            timing = replace(timing, of_compute=of_compute(heat))
        return replace(record, heat=heat, timing=timing)

    def _result(self, task: Task | None) -> dict[str, Any] | None:
        return None if task is None else self._results.get(task.name)


def of_compute(heat: Heat) -> float | None:
    """Return the time of `alone` over the configuration's, the mean of the heat's cycles on a log scale."""
    cycles = list(zip(heat.alone, heat.turn_seconds, strict=False))
    return math.exp(statistics.fmean(math.log(a / b) for a, b in cycles)) if cycles else None


def alone_trial(trial: TrialSpec) -> TrialSpec:
    """Return the trial of plain PyTorch without communication beside a configuration."""
    settings = trial.engine.model_dump(mode="json", include=set(ALONE_KEYS))
    engine = EngineSpec.model_validate({**settings, "engine": "alone"})
    return trial.model_copy(update={"engine": engine, "verify": VerifySpec(mode="off"), "axes": {}})
