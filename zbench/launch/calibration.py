"""The rates of this machine, measured by ranks that start as those of a trial do."""

from pathlib import Path
from typing import Any

from zbench.launch.once import run_once
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

_MEASURE = "zbench.worker.calibrate:measure"
_PATIENCE_SECONDS = 180.0
_TINY: dict[str, Any] = {
    "model": "gpt",
    "options": {"layers": 4, "width": 32, "heads": 2},
    "sequence_length": 8,
    "micro_batch_size": 1,
    "data": {"synthetic": True},
}


def calibrate(world_size: int) -> MachineSpec:
    """Return one rank's rates where `world_size` ranks share this machine; ZbenchError where they fail."""
    tiny = {"workload": _TINY, "run": {"world_size": world_size}, "engine": {"zero_stage": 2}}
    rates = run_once(_MEASURE, TrialSpec.model_validate(tiny), Path.cwd(), patience=_PATIENCE_SECONDS)
    return MachineSpec.model_validate({key: value for key, value in rates.items() if value is not None})
