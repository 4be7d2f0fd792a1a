"""What a machine can do, as only a process with torch can tell. `zbench doctor` runs it in a child."""

import importlib
import os
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench.measure.ceilings import stream_bandwidth
from zbench.measure.counts import instruction_problem
from zbench.measure.memory import choose_meter
from zbench.spec.peers import PEERS, missing_package
from zbench.worker.engines import GROUP, find_builder
from zbench.worker.job import RankJob, write_json

ENGINES = ("builtin", *PEERS)


def report(job: RankJob) -> None:
    """Write versions, kernels, engines, devices and memory bandwidth of this machine as JSON."""
    cpu = torch.device("cpu")
    facts = {
        "torch": {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "backends": [name for name in ("gloo", "nccl", "mpi") if dist.is_backend_available(name)],
        },
        "native": native_kernels(),
        "memory_shim": choose_meter(cpu)[1],
        "instructions": instruction_problem(),
        "engines": {name: engine_problem(name) for name in _engine_names()},
        "cuda": cuda_devices(),
        "bandwidth": {"threads": torch.get_num_threads(), "bytes_per_s": stream_bandwidth(cpu)},
    }
    write_json(Path(job.result_path), facts)


def native_kernels() -> dict[str, Any]:
    """Return the instruction set in use and those available, or why there is none; likewise CUDA's."""
    try:
        from zbench import _native
        from zbench.engine.adam import cuda_unavailable_reason
    except ImportError as error:
        return {"problem": str(error), "isa": None, "available": [], "cuda_problem": "not built"}
    isas = {"isa": _native.isa(), "available": list(_native.available_isas())}
    return {"problem": None, **isas, "cuda_problem": cuda_unavailable_reason()}


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
    """Return name and memory of every CUDA device torch can use."""
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": device.name, "memory_bytes": device.total_memory} for device in found]


def meet(job: RankJob) -> None:
    """Join a gloo group of processes on this host and add the ranks' numbers."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=job.init_method,
        rank=job.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=20),
    )
    total = torch.tensor([job.rank + 1])
    dist.all_reduce(total)
    if job.rank == 0:
        write_json(Path(job.result_path), {"sum": int(total)})
    dist.destroy_process_group()


def _engine_names() -> list[str]:
    return [*ENGINES, *(point.name for point in entry_points(group=GROUP) if point.name not in ENGINES)]
