"""Measures the rates of a machine for `zbench doctor --calibrate`; `estimate` tells times by them."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench import clocks
from zbench.engine.assembly.build import Instruments
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.engine.protocols import Tag
from zbench.engine.transport.choose import choose_collectives
from zbench.job.jobs import RankJob, write_json
from zbench.measure.clock import PhaseClock, synchronize
from zbench.measure.counts import count_operators
from zbench.measure.traffic import TrafficMeter
from zbench.spec.trial import TrialSpec
from zbench.worker import process
from zbench.worker.loop import Trainer
from zbench.workloads import build_workload

_ROWS, _WIDTH = 256, 768
_STREAM = 1 << 24  # elements
_LINK = 1 << 22  # elements
_SECONDS, _FEWEST, _CALLS, _STEPS = 0.4, 5, 25, 30
_TAG = Tag("calibration")


def measure(job: RankJob) -> None:
    """Measure on one rank; rank 0 writes the rates as the JSON of a MachineSpec."""
    trial = TrialSpec.model_validate(job.trial)
    device = process.start(job, trial)
    measured = rates(device) | links(device)
    measured["operator_latency"] = _operator_latency(trial, device, measured["link_latency"] or 0.0)
    if job.rank == 0:
        write_json(Path(job.result_path), measured)
    process.stop()


def rates(device: torch.device) -> dict[str, Any]:
    """Return FLOPs a second by dtype, and the bytes a second of memory and of the link to the host."""
    flops = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(n, 4 * _WIDTH, device=device).to(dtype) for n in (_ROWS, _WIDTH))
        took = seconds(lambda a=a, b=b: torch.mm(a, b.t()), device)  # type: ignore[misc]
        flops[str(dtype).removeprefix("torch.")] = mean(2.0 * _ROWS * _WIDTH * 4 * _WIDTH / took)
    bandwidth = host_link = host_bandwidth = stream(device)
    if device.type == "cuda":
        host = PinnedHostMemory(device).empty(_STREAM, torch.float32)
        there = torch.empty(_STREAM, device=device)
        host_link = mean(host.nbytes / seconds(lambda: there.copy_(host, non_blocking=True), device))
        host_bandwidth = stream(torch.device("cpu"))
    return {
        "flops": flops,
        "memory_bandwidth": bandwidth,
        "host_link": host_link,
        "host_memory_bandwidth": host_bandwidth,
    }


def stream(device: torch.device) -> float:
    """Return bytes a second of `a = b + s c`: two reads and a write."""
    a, b, c = (torch.ones(_STREAM, device=device) for _ in range(3))
    return mean(3.0 * a.nbytes / seconds(lambda: torch.add(b, c, alpha=2.0, out=a), device))


def links(device: torch.device) -> dict[str, float | None]:
    """Return what the engine's own collectives reach; None for both in a world of one rank."""
    memories = Memories.of(device)
    collectives = choose_collectives(None, DeviceMemory(device), memories.host)
    ranks = collectives.world_size
    if ranks == 1:
        return {"link_bandwidth": None, "link_latency": None}
    try:
        small = exchange(collectives, 256 * ranks, device)
        large = exchange(collectives, _LINK // ranks * ranks, device)
    finally:
        collectives.close()
    sent = 4.0 * _LINK * (ranks - 1) / ranks
    return {"link_bandwidth": mean(sent / max(large - small, 1e-9)), "link_latency": mean(small)}


def exchange(collectives: Any, numel: int, device: torch.device) -> float:
    """Return the seconds of one collective: a reduce-scatter and an all-gather, by two."""
    send, part = (torch.ones(n, device=device) for n in (numel, numel // collectives.world_size))

    def both() -> None:
        collectives.reduce_scatter(send, part, _TAG).wait()
        collectives.all_gather(send, _TAG).wait()

    return seconds(both, device, passes=_CALLS) / 2


def _operator_latency(trial: TrialSpec, device: torch.device, link_latency: float) -> float:
    """Return the seconds per operator of a tiny step, without its collectives."""
    workload = build_workload(trial.workload, seed=0, world_size=trial.run.world_size, base_dir=Path.cwd())
    traffic = TrafficMeter(clock := PhaseClock())
    instruments = Instruments(wrap_collectives=traffic.count)
    trainer = Trainer(trial, workload, Path.cwd(), instruments, device=device, clock=clock)
    batches = trainer.batches(0)
    took = seconds(lambda: trainer.step(batches), device, passes=_STEPS)
    traffic.take()
    operators = count_operators(lambda: trainer.step(batches), device)["operators"]
    calls = sum(kind.calls for kind in traffic.take().values())
    trainer.engine.close()
    return mean(max(took - calls * link_latency, 1e-9) / operators)


def seconds(work: Callable[[], object], device: torch.device, passes: int | None = None) -> float:
    """Return the seconds of one call, all ranks calling at the same time: the first quartile of many, because
    what disturbs a machine only ever adds time.

    passes: how many, which collectives need to be the same on all ranks; None: as many as fit a while.
    """
    work()
    dist.barrier()
    took: list[float] = []
    until = clocks.perf_counter() + _SECONDS
    while len(took) < (passes or _FEWEST) or (passes is None and clocks.perf_counter() < until):
        synchronize(device)
        began = clocks.perf_counter()
        work()
        synchronize(device)
        took.append(clocks.perf_counter() - began)
    return statistics.quantiles(took, n=4)[0]


def mean(value: float) -> float:
    """Return the mean over ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
