"""Facts of a machine that only a process with torch can find. `zbench doctor` runs it in a child process."""

import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench import _native
from zbench.engine.adam import AdamTask, CudaAdam, Hyper, NativeAdam, Slot, cuda_unavailable_reason
from zbench.engine.adam.exact_sum import exact_zero, rounded
from zbench.job.jobs import RankJob, write_json
from zbench.measure.ceilings import stream_bandwidth
from zbench.measure.counts import instruction_problem
from zbench.measure.memory import choose_meter
from zbench.spec.peers import PEERS, missing_package
from zbench.worker.engines import GROUP, find_builder
from zbench.worker.yardstick import Products


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
            hyper = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)
            sums = exact_zero(place)
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
