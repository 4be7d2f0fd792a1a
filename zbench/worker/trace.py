"""Trace a step: a profiler's trace, memory by category over time, and a lower bound for each part.

Two additional steps run after all measured ones, so tracing changes no figure of the record.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench import clocks
from zbench.engine.protocols import TrainingEngine
from zbench.job.jobs import write_json
from zbench.measure.ceilings import matrix_flops, stream_bandwidth
from zbench.measure.clock import PhaseClock, synchronize
from zbench.measure.memory import ACTIVATIONS, PeakMeter
from zbench.record.record import Timing

_PAUSE_SECONDS = 0.0002
_HOST = "host_"


@dataclass(frozen=True, slots=True)
class Subject:
    """The traced training. step: runs one training step; every rank must call it."""

    step: Callable[[], object]
    clock: PhaseClock
    meter: PeakMeter
    engine: TrainingEngine
    device: torch.device


@contextmanager
def memory_samples(subject: Subject) -> Iterator[list[dict[str, Any]]]:
    """Sample memory by category in a thread while a block runs; yield the samples.

    The engine reports its own memory; categories that begin with `host_` are in host memory. The rest of the
    device's tensors is `activations`: activations, temporaries and batches.
    """
    samples: list[dict[str, Any]] = []
    began = clocks.perf_counter()
    end = threading.Event()

    def sample() -> None:
        try:
            held = dict(subject.engine.memory_by_category())
        except (RuntimeError, KeyError):  # the step changed a table meanwhile
            return
        live = subject.meter.live()
        host = {name: size for name, size in held.items() if name.startswith(_HOST)}
        device = {name: size for name, size in held.items() if name not in host}
        rest = live - sum(device.values()) - (0 if subject.device.type == "cuda" else sum(host.values()))
        device[ACTIVATIONS] = max(0, rest)
        samples.append({"seconds": clocks.perf_counter() - began, "device": device, "host": host})

    def watch() -> None:
        while not end.wait(_PAUSE_SECONDS):
            sample()

    sample()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        end.set()
        thread.join()
        sample()


def look_inside(stem: Path, subject: Subject, timing: Timing, *, limit: int | None) -> None:
    """Run two traced steps; rank 0 writes `STEM.trace.json` and `STEM.memory.json`. Every rank calls it.

    timing: of the measured steps. limit: the largest allowed bytes on the device, drawn in the timeline.
    """
    device, clock = subject.device, subject.clock
    is_first = dist.get_rank() == 0
    stem.parent.mkdir(exist_ok=True)
    ceilings = (matrix_flops(device), stream_bandwidth(device))  # all ranks at once: they share the machine
    held = subject.engine.memory_by_category()
    clock.take()
    with memory_samples(subject) as samples:
        began = clocks.perf_counter()
        subject.step()
        synchronize(device)
        seconds = clocks.perf_counter() - began
    phases = clock.take()
    _profiled(subject, stem.with_suffix(".trace.json") if is_first else None)
    if not is_first:
        return
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    flops = None  # of one step on one rank
    if timing.tflops is not None:
        flops = timing.tflops * 1e12 * timing.mean_step_s / dist.get_world_size()
    document = {
        "schema_version": 1,
        "seconds": seconds,
        "phases": phases,
        "limit_bytes": limit or total,
        "bounds": bounds(phases, seconds, flops, update_bytes(held), *ceilings),
        "samples": samples,
    }
    write_json(stem.with_suffix(".memory.json"), document)


def update_bytes(held: Mapping[str, int]) -> int:
    """Return what one update of Adam reads and writes at least: 28 bytes a float32 parameter, of which 8 are
    moments. Master weights and moments are read and written, gradients are read.
    """
    return sum(size for name, size in held.items() if name.endswith("moments")) * 28 // 8


def bounds(
    phases: Mapping[str, float],
    seconds: float,
    flops: float | None,
    update_bytes: int,
    flops_per_s: float,
    bytes_per_s: float,
) -> dict[str, dict[str, float | None]]:
    """Return the seconds of each part of a step, and a lower bound for it on this machine.

    compute: forward and backward, against its FLOPs at the rate of a large matrix product. exposed_update:
    the optimizer, against its bytes at the rate of a stream. exposed_communication: time that collectives add
    to the step; all of it could be hidden, so its bound is 0. other: the rest.
    """
    compute = phases["forward"] + phases["backward"]
    communication = phases["reduce"] + phases["gather"]
    update = phases["optimizer"]
    least = None if flops is None else flops / flops_per_s
    return {
        "compute": {"seconds": compute, "least_seconds": least},
        "exposed_communication": {"seconds": communication, "least_seconds": 0.0},
        "exposed_update": {"seconds": update, "least_seconds": update_bytes / bytes_per_s},
        "other": {"seconds": max(0.0, seconds - compute - communication - update), "least_seconds": 0.0},
    }


def _profiled(subject: Subject, path: Path | None) -> None:
    """Run a step, under torch's profiler where a path is given, with the phases as named ranges."""
    if path is None:
        subject.step()
        return
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if subject.device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    subject.clock.annotate = torch.profiler.record_function
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
        subject.step()
        synchronize(subject.device)
    subject.clock.annotate = None
    profile.export_chrome_trace(str(path))
