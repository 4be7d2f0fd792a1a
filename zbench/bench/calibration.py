"""The rates of this machine, measured by ranks that start as those of a trial do."""

from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import attaining
from zbench.launch.local import run_once
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

_MEASURE = "zbench.worker.calibrate:measure"
_TRAIN = "zbench.worker.calibrate:train"
_PATIENCE_SECONDS = 180.0
_TINY: dict[str, Any] = {
    "model": "gpt",
    "options": {"layers": 4, "width": 32, "heads": 2},
    "sequence_length": 8,
    "micro_batch_size": 1,
    "data": {"synthetic": True},
}
_PROBE = {**_TINY, "options": {}, "preset": "micro", "sequence_length": 96, "micro_batch_size": 3}


def calibrate(world_size: int) -> MachineSpec:
    """Return one rank's rates where `world_size` ranks share this machine; ZbenchError where they fail.

    `attained` is the share of the rates that a step of a small GPT reaches.
    """
    rates = run_once(_MEASURE, _trial(_TINY, world_size), Path.cwd(), patience=_PATIENCE_SECONDS)
    machine = MachineSpec.model_validate({key: value for key, value in rates.items() if value is not None})
    probe = _trial(_PROBE, world_size)
    measured = run_once(_TRAIN, probe, Path.cwd(), patience=_PATIENCE_SECONDS)["step_s"]
    with Simulator(Path.cwd(), jobs=1) as simulator:
        found = simulator.of(probe)
    if not isinstance(found, Estimate):
        raise ZbenchError(f"the step that was measured cannot be simulated: {found.reason}")
    return attaining(machine, found, probe, measured)


def _trial(workload: dict[str, Any], world_size: int) -> TrialSpec:
    return TrialSpec.model_validate(
        {"workload": workload, "run": {"world_size": world_size}, "engine": {"zero_stage": 2}}
    )
