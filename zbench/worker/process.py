"""One rank's process: its threads, its process group, its memory limit, and its progress lines."""

import ctypes
import json
import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from zbench import clocks
from zbench.engine.adam import cuda_unavailable_reason
from zbench.errors import UsageError
from zbench.gpus import MULTI_RANK, ranks_share_by_nccl, visible_gpus
from zbench.job.jobs import RankJob, threads_per_rank
from zbench.spec.run import RunSpec, shared_gpus, slow_update, updates_on_gpu
from zbench.spec.trial import TrialSpec

SHARES_DEVICES = (2, 30)
"""The first NCCL that lets ranks share a device."""
_FOR_ONE_THREAD = 1 << 15  # elements that torch gives each thread at least
_MOST_STARTED = 1 << 10


def start(job: RankJob, trial: TrialSpec) -> torch.device:
    """Start the process's threads, join the process group, and return the rank's device."""
    set_threads(threads_per_rank(trial, job.local_world_size))
    os.environ.update(variables_of(job))
    device = device_of(trial.run.device, job.local_rank)
    if job.init_method.startswith(("file://", "tcp://127.")):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's own name need not resolve
    if trial.engine.engine == "builtin":  # it says why a call cannot end; torch would end the process first
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    timeout = timedelta(seconds=max(60.0, trial.run.timeout))
    backend = backend_for(device, job.ranks_here, torch.cuda.device_count())
    dist.init_process_group(
        backend,
        init_method=job.init_method,
        rank=job.rank,
        world_size=job.world_size,
        timeout=timeout,
        device_id=device if "nccl" in backend else None,  # so communicators are made now, not in a backward
    )
    return device


def variables_of(job: RankJob) -> dict[str, str]:
    """Return what torchrun would set for a rank: an engine that is not zbench's may read it."""
    about = {"RANK": job.rank, "WORLD_SIZE": job.world_size, "LOCAL_RANK": job.local_rank}
    about["LOCAL_WORLD_SIZE"] = job.ranks_here
    meeting = urlsplit(job.init_method)
    has_port = meeting.scheme == "tcp" and meeting.port is not None
    where = {"MASTER_ADDR": meeting.hostname or "127.0.0.1"}
    where |= {"MASTER_PORT": str(meeting.port)} if has_port else {}
    return {name: str(value) for name, value in about.items()} | where


def backend_for(device: torch.device, local_ranks: int, devices: int) -> str:
    """Return the process group's backend. NCCL needs a device per rank; if ranks share a device, the engine
    communicates through host memory, with gloo, unless `NCCL_MULTI_RANK_GPU_ENABLE=1` asks for NCCL.

    UsageError where the variable is set and NCCL is too old to know it.
    """
    if device.type != "cuda":
        return "gloo"
    if local_ranks > devices:
        if not ranks_share_by_nccl():
            return "gloo"
        _require_shared_devices()
    return "cpu:gloo,cuda:nccl"


def _require_shared_devices() -> None:
    nccl = nccl_version()
    if nccl < SHARES_DEVICES:
        expected, got = (".".join(map(str, version)) for version in (SHARES_DEVICES, nccl))
        raise UsageError(
            f"{MULTI_RANK}: expected NCCL {expected} or later, which lets ranks share a GPU, found"
            f" {got or 'none'}; install a newer nvidia-nccl beside torch, or unset the variable, and ranks"
            " communicate through host memory"
        )


def nccl_version() -> tuple[int, ...]:
    """Return the version of the NCCL that is loaded; () where torch has none.

    `torch.cuda.nccl.version` is that of NCCL's headers, with which torch was built.
    """
    if not dist.is_nccl_available():
        return ()
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD).ncclGetVersion(ctypes.byref(number))
    except OSError:
        return tuple(torch.cuda.nccl.version()[:3])  # type: ignore[no-untyped-call]
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


def gpus_of(job: RankJob, trial: TrialSpec, device: torch.device) -> tuple[int, list[str]]:
    """Return the number of devices of all ranks of a trial, equally many on each host. Return also warnings
    of what makes them slower: ranks that share one, an update without zbench's kernels.
    """
    if device.type != "cuda":
        return job.world_size, []
    local = job.ranks_here
    gpus = min(local, torch.cuda.device_count()) * job.world_size // local
    warnings = [shared_gpus(job.world_size, gpus)] if gpus < job.world_size else []
    if updates_on_gpu(trial.engine) and (reason := cuda_unavailable_reason()):
        warnings.append(slow_update(reason))
    return gpus, warnings


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def set_threads(threads: int) -> None:
    """Set torch's compute threads, and start them: a memory limit set later would stop OpenMP from doing
    it."""
    torch.set_num_threads(threads)
    if threads > 1:
        torch.zeros(min(threads, _MOST_STARTED) * _FOR_ONE_THREAD).add_(1)


def device_of(choice: str, local_rank: int = 0) -> torch.device:
    """Return the device of one of this machine's ranks, as `run.device` says."""
    if torch.version.hip and choice != "cpu":
        raise UsageError(
            f"run.device: expected a torch built for CUDA, got one for ROCm {torch.version.hip}, whose GPUs"
            " zbench has no kernels for; use cpu, or a torch of CUDA's"
        )
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("run.device: cuda is not available here (see `zbench doctor`); use cpu or auto")
    slices = [gpu.uuid for gpu in visible_gpus() if gpu.is_slice]
    if slices:  # CUDA shows a process one slice only
        os.environ["CUDA_VISIBLE_DEVICES"] = slices[local_rank % len(slices)]
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class MemoryLimit:
    """A limit on the private memory that the process may allocate from now on; shared mappings do not
    count.

    Exceeding it raises an ordinary out-of-memory error and leaves the process usable.
    """

    def __init__(self, allowed: int | None) -> None:
        self._allowed = allowed
        self._limit = None if allowed is None else _data_bytes() + allowed
        self._set(self._limit)

    def on(self, device: torch.device) -> int | None:
        """Return the bytes that may be allocated on a device: of a GPU all that it has."""
        if device.type == "cpu":
            return self._allowed
        return int(torch.cuda.get_device_properties(device).total_memory)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Lift the limit for a block: memory of the verification does not count as the trial's."""
        self._set(None)
        try:
            yield
        finally:
            self._set(self._limit)

    def _set(self, limit: int | None) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard if limit is None else limit, hard))


def _data_bytes() -> int:
    """Return the private writable memory that the kernel counts against RLIMIT_DATA."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))


class Progress(AbstractContextManager["Progress"]):
    """Appends one JSON line a step to a file or FIFO; does nothing without a path, and never fails a
    trial."""

    def __init__(self, path: str | None) -> None:
        self._file: IO[str] | None = open(path, "a", buffering=1) if path else None  # noqa: SIM115 - closed in exit
        self._since = clocks.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def training_step(self, run: RunSpec, number: int, seconds: float) -> None:
        """Note that step `number` of a trial, from 1, is done; a script may run more steps than `steps`."""
        if number <= run.warmup_steps:
            self.step("warmup", number, run.warmup_steps, seconds)
        else:
            self.step("timed", min(number - run.warmup_steps, run.steps), run.steps, seconds)

    def step(self, phase: str, step: int, steps: int, seconds: float | None = None) -> None:
        """Note that `step` of `steps` (counted from 1) is done; `seconds`, or the time since the last
        line."""
        now = clocks.perf_counter()
        seconds = now - self._since if seconds is None else seconds
        self._since = now
        if self._file is None:
            return
        line = {
            "phase": phase,
            "step": step,
            "steps": steps,
            "seconds": seconds,
            "cpu": clocks.process_time(),
        }
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError:
            self._file = None  # nobody listens any more
