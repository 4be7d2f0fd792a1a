"""Simulates every configuration of a sweep: memory, traffic and, on a known machine, the time of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.estimate.client import Simulator
from zbench.estimate.roofline import ASSUMED, StepTime, step_time
from zbench.estimate.row import EstimateRow
from zbench.estimate.search import limits
from zbench.spec.combinations import advice
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, sweep_file, sweep_from_mapping
from zbench.spec.machine import described, is_card
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec, samples_per_step

_ON_A_HOST = (
    "all ranks are on one host and read one another's memory; over sockets each running collective also needs"
    " a receive buffer of up to one bucket; for a GPU's sizes and receive buffers set run.device=cuda"
)
_ON_CARDS = "a GPU's default sizes, and NCCL with its receive buffers"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What every configuration of a sweep needs. memory: of the device, in bytes, that they are to fit."""

    sweep: SweepSpec
    rows: Sequence[EstimateRow]
    invalid: Sequence[InvalidTrial]
    memory: int | None

    @property
    def assumed(self) -> str:
        """What all of it rests on, in words."""
        return _ON_CARDS if all(row.trial.run.device == "cuda" for row in self.rows) else _ON_A_HOST

    @property
    def time_assumed(self) -> str | None:
        """What the times rest on; None without times."""
        return ASSUMED if any(row.time is not None for row in self.rows) else None

    @property
    def advice(self) -> Sequence[str]:
        """What could be better about the engines, each once."""
        return list(dict.fromkeys(filter(None, (advice(row.trial.engine) for row in self.rows))))

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.sweep.name,
            "device_memory": self.memory,
            "assumed": self.assumed,
            "time_assumed": self.time_assumed,
            "trials": [row.to_json() for row in self.rows],
            "invalid": [trial.document() for trial in self.invalid],
        }


def forecast(
    file: Path | None,
    settings: Sequence[str],
    *,
    memory: int | None = None,
    find_limits: bool = False,
    tokens: int | None = None,
    jobs: int | None = None,
) -> Forecast:
    """Simulate a sweep file, or the default configuration.

    find_limits: also the smallest world size and the largest micro-batch that fit `memory`. tokens: also the
    time to train for so many. jobs: configurations at once.
    """
    if file is None:
        sweep, base_dir = sweep_from_mapping({"name": "estimate"}, settings), Path.cwd()
    else:
        path = sweep_file(file)
        sweep, base_dir = load_sweep(path, settings), path.absolute().parent
    expansion = expand(sweep, simulated=True)
    if tokens is not None and sweep.machine is None:
        raise UsageError("--tokens needs the rates of a machine; add --machine, such as --machine H100")
    machine, trials = described(sweep.machine, sweep.place), expansion.trials
    if is_card(machine):
        trials = [_on_card(trial) for trial in trials]
    rows = []
    with Simulator(base_dir, jobs=jobs) as simulator:
        for trial, outcome in zip(trials, list(simulator.each(trials)), strict=True):
            row = EstimateRow(trial, outcome, memory)
            if find_limits and memory is not None and row.estimate is not None:
                row = replace(row, limits=limits(simulator, trial, memory))
            if machine and row.estimate is not None:
                row = replace(row, time=step_time(row.estimate, trial, machine))
            if tokens is not None:
                row = replace(row, training=(tokens, _training(row, tokens)))
            rows.append(row)
    return Forecast(sweep, rows, expansion.invalid, memory)


def _on_card(trial: TrialSpec) -> TrialSpec:
    """Return the trial on a GPU, unless it asks for a device."""
    if trial.run.device != "auto":
        return trial
    return trial.model_copy(update={"run": trial.run.model_copy(update={"device": "cuda"})})


def _training(row: EstimateRow, tokens: int) -> tuple[float, float] | str:
    """Return the least and the most seconds for this number of tokens, or why they are not known."""
    workload = row.trial.workload
    if ":" in workload.model.removeprefix("hf:") or workload.data.dataset is not None:
        return "the workload does not say what a token is"
    if not isinstance(row.time, StepTime):
        return row.time or "not simulated"
    steps = tokens / (samples_per_step(row.trial) * workload.sequence_length)
    return steps * row.time.low_s, steps * row.time.high_s
