"""A decoder of 1.0 G parameters in bfloat16 on a device: stages x offload x speculation, and its peers."""

import importlib.metadata
import json
import sys
from typing import Any

import torch

import zbench.measure.shim
from tools.benchmarks.gpu.commands import sweep
from tools.benchmarks.gpu.outcome import PartOutcome, Place
from tools.benchmarks.training import random_tokens, seeded_gpt
from zbench.engine import build_engine
from zbench.measure.memory import StepMemory, choose_meter
from zbench.spec.engine import EngineSpec

BIG = {"layers": 18, "width": 2048, "heads": 16, "vocabulary": 32000}
SMALL = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64}
OFFLOADS: list[dict[str, Any]] = [{"zero_stage": stage, "offload_optimizer": "cpu"} for stage in (1, 2, 3)]
PLAIN: dict[str, Any] = {"dtype": "float32"}  # torch's peers have no masters beside bfloat16 parameters


def decoder_sweep(place: Place) -> dict[str, Any]:
    """Return the sweep as a sweep file's document: one rank, then torch's peers beside it in float32, then
    two ranks of the card, so that what matters most is there first.
    """
    rows: list[dict[str, Any]] = [{"zero_stage": stage} for stage in (0, 1, 2, 3)] + OFFLOADS
    rows += [{**row, "offload_schedule": "speculative"} for row in OFFLOADS]
    peers = [{**PLAIN, "zero_stage": 0}, {**PLAIN, "zero_stage": 3}, {**PLAIN, **OFFLOADS[2]}]
    peers += [{**PLAIN, "engine": name, "zero_stage": stage} for name, stage in (("ddp", 0), ("fsdp2", 3))]
    if place.tiny:
        rows, peers = rows[-1:], peers[-1:]
    include = [{**row, "world_size": 1} for row in (*rows, *peers)]
    if not place.tiny:
        include += [{**row, "world_size": 2} for row in rows]
    return _document(place, "decoder", include)


def deepspeed_sweep(place: Place) -> dict[str, Any]:
    """Return the sweep of DeepSpeed's stage 3, plain and with the optimizer offloaded, in bfloat16."""
    rows: list[dict[str, Any]] = [{"zero_stage": 3}, OFFLOADS[2]]
    include = [{"engine": "deepspeed", "world_size": 1, **row} for row in rows]
    return _document(place, "decoder-deepspeed", include[:1] if place.tiny else include)


def _document(place: Place, name: str, include: list[dict[str, Any]]) -> dict[str, Any]:
    tiny = place.tiny
    return {
        "name": name,
        "workload": {
            "model": "gpt",
            "data": {"synthetic": True},
            "options": SMALL if tiny else BIG,
            "sequence_length": 16 if tiny else 1024,
            "micro_batch_size": 1 if tiny else 4,
        },
        "run": {"warmup_steps": 1, "steps": 2 if tiny else 4, "repeats": 1, "timeout": "180s"},
        "engine": {"dtype": "bfloat16", "gradient_clipping": 1.0, "optimizer": {"lr": 1e-4}},
        "axes": {},
        "include": include,
        "verify": {"mode": "reference"},
    }


def run(place: Place) -> PartOutcome:
    """Compare the peak with the allocator's own, then run the sweeps."""
    unequal = [says for row in PEAK_ROWS if (says := peaks_differ(place, row))]
    outcomes = [_swept(place, decoder_sweep(place), sys.executable)]
    python = deepspeed_python(place)
    if python is not None:
        outcomes.append(_swept(place, deepspeed_sweep(place), python))
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


def _swept(place: Place, document: dict[str, Any], python: str) -> PartOutcome:
    file = place.out / f"{document['name']}-sweep.json"
    file.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return sweep(file, place, document["name"], python=python)


PEAK_ROWS: list[dict[str, Any]] = [{"zero_stage": 0}, {"zero_stage": 3}, OFFLOADS[1]]


def peaks_differ(place: Place, row: dict[str, Any]) -> str:
    """Train two steps as a trial's rank does; return how its peak differs from what the allocator says, "" if
    it does not.
    """
    device = torch.device(place.device)
    layers, width = (1, 64) if place.tiny else (8, 1024)
    meter, inexact = choose_meter(device)
    before, memory = _live(device), StepMemory(meter, device)
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
            highest = max(highest, _peak(device) - before)
        found = memory.summary(engine.memory_by_category())
    finally:
        engine.close()
    told = (found.peak_device_bytes or 0) + (0 if device.type == "cuda" else found.peak_host_bytes or 0)
    return (
        "" if inexact or told == highest else f"{row}: {told} bytes at the peak, the allocator says {highest}"
    )


def _live(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    shim = zbench.measure.shim.SHIM
    return 0 if shim is None else int(shim.zbench_memory_live_bytes())


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    shim = zbench.measure.shim.SHIM
    return 0 if shim is None else int(shim.zbench_memory_peak_bytes())
