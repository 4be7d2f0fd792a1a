"""A decoder of 1.0 G parameters in bfloat16 on a device: stages x offload x speculation, and its peers."""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch

import zbench.measure.shim
from tools.benchmarks.gpu.commands import sweep
from tools.benchmarks.gpu.outcome import PartOutcome, Place
from tools.benchmarks.gpu.parts import smallest_form
from tools.benchmarks.training import random_tokens, seeded_gpt
from zbench.engine import build_engine
from zbench.measure.memory import StepMemory, choose_meter
from zbench.spec.engine import EngineSpec

FOLDER = Path(__file__).parent
SMALL = {
    "options": {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64},
    "sequence_length": 16,
    "micro_batch_size": 1,
}


def run(place: Place) -> PartOutcome:
    """Compare the peak with the allocator's own, then run the sweeps."""
    unequal = [says for row in PEAK_ROWS if (says := peaks_differ(place, row))]
    outcomes = [_swept(place, "decoder", sys.executable)]
    python = deepspeed_python(place)
    if python is not None:
        outcomes.append(_swept(place, "decoder-deepspeed", python))
    told = [o.says for o in outcomes] + ([] if python else ["DeepSpeed is not installed: no rows of it"])
    told.append("; ".join(unequal) or "peaks are the allocator's own to the byte")
    rows = [*outcomes[0].rows, *(row for o in outcomes[1:] for row in o.rows[1:])]
    good = not unequal and outcomes[0].status == "passed"  # a peer's failure is in its row
    return PartOutcome("passed" if good else "failed", "; ".join(told), rows)


def deepspeed_python(place: Place) -> str | None:
    """Return an interpreter that has DeepSpeed: the one that was named, or this one; else None."""
    if place.deepspeed_python:
        return place.deepspeed_python
    try:
        importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return None
    return sys.executable


def _swept(place: Place, name: str, python: str) -> PartOutcome:
    file = FOLDER / f"{name}.yaml"
    sets = [f"workload.{key}={json.dumps(value)}" for key, value in SMALL.items()] if place.tiny else []
    sets += smallest_form(file) if place.tiny else []
    return sweep(file, place, name, sets=sets, python=python)


PEAK_ROWS: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 3},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
]


def peaks_differ(place: Place, row: dict[str, Any]) -> str:
    """Train two steps as a trial's rank does; return how its peak differs from what the allocator says, "" if
    it does not.
    """
    device = torch.device(place.device)
    layers, width = (1, 64) if place.tiny else (8, 1024)
    meter, inexact = choose_meter(device)
    before, memory = _allocated(device)[0], StepMemory(meter, device)
    model = seeded_gpt(layers, width, length=64).to(device)
    spec = EngineSpec.model_validate({**row, "dtype": "bfloat16", "gradient_clipping": 1.0})
    engine, data = build_engine(model, spec), random_tokens(2, length=64)
    highest = 0
    try:
        for step in range(2):
            batch = [tensor.to(device) for tensor in data.micro_batch(step)]
            memory.begin()
            engine.backward(model(*batch))
            engine.step()
            memory.end()
            highest = max(highest, _allocated(device)[1] - before)
        found = memory.summary(engine.memory_by_category())
    finally:
        engine.close()
    told = (found.peak_device_bytes or 0) + (0 if device.type == "cuda" else found.peak_host_bytes or 0)
    return (
        "" if inexact or told == highest else f"{row}: {told} bytes at the peak, the allocator says {highest}"
    )


def _allocated(device: torch.device) -> tuple[int, int]:
    """Return the bytes that the allocator has handed out, and the most that it had."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    shim = zbench.measure.shim.SHIM
    return (0, 0) if shim is None else (shim.zbench_memory_live_bytes(), shim.zbench_memory_peak_bytes())
