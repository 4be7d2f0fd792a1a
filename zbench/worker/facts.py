"""Facts of a machine that only a process with torch can find. `zbench doctor` runs it in a child process."""

import importlib
import statistics
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench import _native
from zbench.engine.adam import AdamTask, CudaAdam, Hyper, NativeAdam, Slot, cuda_unavailable_reason
from zbench.engine.adam.exact_sum import exact_zero, rounded
from zbench.engine.assembly.build import Instruments
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.engine.protocols import Tag
from zbench.engine.transport.choose import choose_collectives
from zbench.job.jobs import RankJob, write_json
from zbench.measure.ceilings import stream_bandwidth
from zbench.measure.clock import PhaseClock, synchronize
from zbench.measure.counts import count_operators, instruction_problem
from zbench.measure.memory import choose_meter
from zbench.measure.traffic import TrafficMeter
from zbench.spec.peers import PEERS, missing_package
from zbench.spec.trial import TrialSpec
from zbench.worker import process
from zbench.worker.engines import GROUP, find_builder
from zbench.worker.loop import Trainer
from zbench.worker.yardstick import Products
from zbench.workloads import build_workload


def report(job: RankJob) -> None:
    """Write versions, kernels, engines, devices and memory bandwidth of this machine as JSON."""
    cpu = torch.device("cpu")
    engines = ["builtin", *PEERS, *(point.name for point in entry_points(group=GROUP))]
    facts = {
        "torch": {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "backends": [name for name in ("gloo", "nccl", "mpi") if dist.is_backend_available(name)],
        },
        "isas": {"in use": _native.isa(), "available": _native.available_isas()},
        "cuda_problem": cuda_unavailable_reason(),
        "memory_shim": choose_meter(cpu)[1],
        "instructions": instruction_problem(),
        "engines": {name: engine_problem(name) for name in engines},
        "cuda": cuda_devices(),
        "bandwidth": {"threads": torch.get_num_threads(), "bytes_per_s": stream_bandwidth(cpu)},
    }
    write_json(Path(job.result_path), facts)


def kernels(job: RankJob) -> None:
    """Write why zbench's kernels cannot be used on this machine's GPUs, or null."""
    write_json(Path(job.result_path), cuda_unavailable_reason())


_PROBED = 10_000  # elements: more than a block


def kernels_problem(device: torch.device) -> str | None:
    """Run each CUDA kernel once on a device, beside the CPU's; return what is wrong, or None."""
    start = torch.linspace(-1.0, 1.0, _PROBED)
    results = []
    try:
        for place, backend in ((torch.device("cpu"), NativeAdam()), (device, CudaAdam())):
            param, grad = start.to(place, copy=True), start.flip(0).to(place)
            out = torch.empty_like(param, dtype=torch.bfloat16)
            slot = Slot(param, grad.clone(), grad.square())
            hyper, sums = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01), exact_zero(place)
            backend.update([AdamTask(slot, grad, 5, hyper, param_out=out)], grad_scale=0.5)
            backend.add_square_sums([grad], sums)
            state = [t.cpu() for t in (slot.param, slot.exp_avg, slot.exp_avg_sq, out)]
            results.append((state, rounded(sums.tolist())))
        Products(device).run(1)
    except RuntimeError as error:
        return str(error)
    (ours, norm), (theirs, their_norm) = results
    same = norm == their_norm and all(map(torch.equal, ours, theirs))
    return None if same else "expected the CPU kernels' bits, got others; please report it"


def engine_problem(name: str) -> str | None:
    """Return why an engine cannot be used here, in the words of `plan`, or None."""
    missing = missing_package(name)
    if missing:
        return missing
    try:
        if name in PEERS and PEERS[name].needs is not None:
            importlib.import_module(str(PEERS[name].needs))  # the builder would find out in the first trial
        find_builder(name, Path.cwd())
    except Exception as error:
        return str(error)
    return None


def cuda_devices() -> list[dict[str, Any]]:
    """Return name and memory of every CUDA device torch can use, and why zbench's kernels cannot use it."""
    # where the driver is too old, there are devices to count and none to use; ROCm's are no CUDA devices
    count = torch.cuda.device_count() if torch.cuda.is_available() and not torch.version.hip else 0
    devices = map(torch.cuda.get_device_properties, range(count))
    return [
        {
            "name": device.name,
            "memory_bytes": device.total_memory,
            "kernels_problem": kernels_problem(torch.device("cuda", index)),
        }
        for index, device in enumerate(devices)
    ]


_ROWS, _WIDTH = 256, 768
_STREAM = 1 << 24  # elements
_LINK = 1 << 22  # elements
_SECONDS, _FEWEST, _CALLS, _STEPS = 0.4, 5, 25, 30
_TAG = Tag("calibration")


def measure(job: RankJob) -> None:
    """Measure on one rank; rank 0 writes the rates as the JSON of a MachineSpec."""
    trial = TrialSpec.model_validate(job.trial)
    device = process.start(job, trial)
    rates = _rates(device) | _links(device)
    rates["operator_latency"] = _operator_latency(trial, device, rates.get("link_latency") or 0.0)
    if job.rank == 0:
        write_json(Path(job.result_path), rates)
    process.stop()


def _rates(device: torch.device) -> dict[str, Any]:
    flops = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(n, 4 * _WIDTH, device=device).to(dtype) for n in (_ROWS, _WIDTH))
        took = _seconds(lambda a=a, b=b: torch.mm(a, b.t()), device)  # type: ignore[misc]
        flops[str(dtype).removeprefix("torch.")] = _mean(2.0 * _ROWS * _WIDTH * 4 * _WIDTH / took)
    bandwidth = host_link = host_bandwidth = _stream(device)
    if device.type == "cuda":
        host = PinnedHostMemory(device).empty(_STREAM, torch.float32)
        there = torch.empty(_STREAM, device=device)
        host_link = _mean(host.nbytes / _seconds(lambda: there.copy_(host, non_blocking=True), device))
        host_bandwidth = _stream(torch.device("cpu"))
    rates = {"flops": flops, "memory_bandwidth": bandwidth, "host_link": host_link}
    return rates | {"host_memory_bandwidth": host_bandwidth}


def _stream(device: torch.device) -> float:
    """Return bytes a second of `a = b + s c`: two reads and a write."""
    a, b, c = (torch.ones(_STREAM, device=device) for _ in range(3))
    return _mean(3.0 * a.nbytes / _seconds(lambda: torch.add(b, c, alpha=2.0, out=a), device))


def _links(device: torch.device) -> dict[str, float | None]:
    """Return what the engine's own collectives reach; None for both in a world of one rank."""
    memories = Memories.of(device)
    collectives = choose_collectives(None, DeviceMemory(device), memories.host)
    ranks = collectives.world_size
    if ranks == 1:
        return {"link_bandwidth": None, "link_latency": None}
    try:
        small = _exchange(collectives, 256 * ranks, device)
        large = _exchange(collectives, _LINK // ranks * ranks, device)
    finally:
        collectives.close()
    sent = 4.0 * _LINK * (ranks - 1) / ranks
    return {"link_bandwidth": _mean(sent / max(large - small, 1e-9)), "link_latency": _mean(small)}


def _exchange(collectives: Any, numel: int, device: torch.device) -> float:
    """Return the seconds of one collective: a reduce-scatter and an all-gather, by two."""
    send, part = (torch.ones(n, device=device) for n in (numel, numel // collectives.world_size))

    def both() -> None:
        collectives.reduce_scatter(send, part, _TAG).wait()
        collectives.all_gather(send, _TAG).wait()

    return _seconds(both, device, passes=_CALLS) / 2


def _operator_latency(trial: TrialSpec, device: torch.device, link_latency: float) -> float:
    """Return the seconds per operator of a tiny step, without its collectives."""
    workload = build_workload(trial.workload, seed=0, world_size=trial.run.world_size, base_dir=Path.cwd())
    traffic = TrafficMeter(clock := PhaseClock())
    instruments = Instruments(wrap_collectives=traffic.count)
    trainer = Trainer(trial, workload, Path.cwd(), instruments, device=device, clock=clock)
    batches = trainer.batches(0)
    took = _seconds(lambda: trainer.step(batches), device, passes=_STEPS)
    traffic.take()
    operators = count_operators(lambda: trainer.step(batches), device)["operators"]
    calls = sum(kind.calls for kind in traffic.take().values())
    trainer.engine.close()
    return _mean(max(took - calls * link_latency, 1e-9) / operators)


def _seconds(work: Callable[[], object], device: torch.device, passes: int | None = None) -> float:
    """Return the seconds of one call, all ranks calling at the same time: the first quartile of many, because
    what disturbs a machine only ever adds time.

    passes: how many, which collectives need to be the same on all ranks; None: as many as fit a while.
    """
    work()
    dist.barrier()
    seconds: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(seconds) < (passes or _FEWEST) or (passes is None and time.perf_counter() < until):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.quantiles(seconds, n=4)[0]


def _mean(value: float) -> float:
    """Return the mean over ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
