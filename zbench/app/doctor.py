"""Measures this machine: its noise, by a version compared with itself, and its rates."""

import json
import sys
from pathlib import Path
from typing import Any

from zbench.analysis.noise import NoiseReport, noise_report
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.app.compare import measure
from zbench.app.voice import Voice
from zbench.errors import ZbenchError
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import attaining
from zbench.launch.process.local import call_on_new_server
from zbench.launch.trial import run_trial
from zbench.scratch import scratch_directory
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

_NOISE_SWEEP = {
    "name": "noise",
    "workload": {"model": "gpt", "preset": "nano", "sequence_length": 64},
    "run": {"world_size": 2, "warmup_steps": 3, "steps": 20},
    "axes": {"zero_stage": [0, 1, 2]},
    "verify": {"mode": "off"},
}
_TINY: dict[str, Any] = {
    "model": "gpt",
    "options": {"layers": 4, "width": 32, "heads": 2},
    "sequence_length": 8,
    "micro_batch_size": 1,
    "data": {"synthetic": True},
}
_PROBE = {**_TINY, "options": {}, "preset": "micro", "sequence_length": 96, "micro_batch_size": 3}


def noise(sweep: Path | None, blocks: tuple[int, int], seed: int | None, voice: Voice) -> NoiseReport:
    """Compare this version with itself; sweep: what it runs, None for three small configurations."""
    with scratch_directory() as scratch:
        file = sweep or Path(scratch) / "noise.json"
        if sweep is None:
            file.write_text(json.dumps(_NOISE_SWEEP))
        sides = (sys.executable, sys.executable)
        settings = Settings(thresholds=PAIRED_THRESHOLDS)
        return noise_report(measure(sides, file, blocks, settings, voice, seed=seed))


def calibrate(world_size: int) -> MachineSpec:
    """Return one rank's rates while `world_size` ranks share this machine; ZbenchError if its ranks fail.

    `attained` is the fraction of these rates that a training step of a small GPT reaches.
    """
    here = Path.cwd()
    tiny = _calibration_trial(_TINY, world_size)
    rates = call_on_new_server("zbench.worker.calibration:measure", tiny, here, patience=180.0)
    machine = MachineSpec.model_validate({key: value for key, value in rates.items() if value is not None})
    probe = _calibration_trial(_PROBE, world_size)
    with scratch_directory() as scratch:
        record = run_trial(probe, run_dir=Path(scratch), base_dir=here)
    with Simulator(here, jobs=1) as simulator:
        estimate = simulator.of(probe)
    if record.timing is None or not isinstance(estimate, Estimate):
        raise ZbenchError(f"a training step could not be measured and simulated: {record.error or estimate}")
    return attaining(machine, estimate, probe, record.timing.median_step_s)


def _calibration_trial(workload: dict[str, Any], world_size: int) -> TrialSpec:
    run = {"world_size": world_size, "warmup_steps": 1, "steps": 30}
    values = {"workload": workload, "run": run, "engine": {"zero_stage": 2}, "verify": {"mode": "off"}}
    return TrialSpec.model_validate(values)
