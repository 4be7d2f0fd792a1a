"""The NVIDIA GPUs of this machine, without CUDA: a process that has started CUDA cannot be forked.

NVML answers, in a container without /proc/driver/nvidia as well. Where NVML is not installed, /proc names the
GPUs, and their memory is not known.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LISTED = Path("/proc/driver/nvidia/gpus")
MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL's own variable: `1` lets ranks share a GPU. Here it also has such ranks use NCCL instead of gloo."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a slice of one (MIG). address: its place on the PCI bus. is_slice: CUDA shows a process one
    slice only, the one that `CUDA_VISIBLE_DEVICES` names.
    """

    model: str
    uuid: str = ""
    address: str = ""
    is_slice: bool = False


def all_gpus() -> list[Gpu]:
    """Return the GPUs in the order of their PCI addresses; instead of one that is sliced, its slices."""
    nvml = load_nvml()
    return list(_listed() if nvml is None else _by_nvml(nvml))


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use (`CUDA_VISIBLE_DEVICES`: numbers, or UUIDs, which may be cut
    short). What follows an entry that names none is not visible, as for CUDA.
    """
    gpus = all_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    chosen = []
    for entry in map(str.strip, visible.split(",")):
        if entry.isdecimal():
            named = gpus[int(entry) : int(entry) + 1]
        else:
            named = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def ranks_share_by_nccl() -> bool:
    """Whether ranks that share a GPU communicate by NCCL."""
    return os.environ.get(MULTI_RANK) == "1"


def free_bytes() -> int:
    """Return the free memory of the visible GPU that has the least; 0 where it is not known."""
    nvml = load_nvml()
    free = list[int]()
    for gpu in visible_gpus() if nvml is not None else ():
        with suppress(nvml.NVMLError):
            free.append(int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).free))
    return min(free, default=0)


def bytes_by_process() -> dict[int, int] | None:
    """Return process id -> the most bytes that it holds on a visible GPU; None where NVML is missing."""
    if (nvml := load_nvml()) is None:
        return None
    held: dict[int, int] = {}
    for gpu in visible_gpus():
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)
    return held


def power_limits() -> list[str]:
    """Return the power limit of each GPU, such as `700.00 W`, where it is known."""
    nvml = load_nvml()
    limits = list[str]()
    for handle in () if nvml is None else _handles(nvml):
        with suppress(nvml.NVMLError):
            limits.append(f"{nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000:.2f} W")
    return limits


@cache
def load_nvml() -> Any:
    """Return the module pynvml, initialized; None where it, or the driver's library, is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # NVML's own errors have a type for each code
        return None
    return nvml


def _handles(nvml: Any) -> Iterator[Any]:
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):
            yield nvml.nvmlDeviceGetHandleByIndex(index)


def _by_nvml(nvml: Any) -> Iterator[Gpu]:
    for handle in _handles(nvml):
        address = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        slices = list(_slices(nvml, handle))
        for one in slices or [handle]:
            name = nvml.nvmlDeviceGetName(one)
            uuid = nvml.nvmlDeviceGetUUID(one)
            yield Gpu(_text(name), _text(uuid), address, is_slice=bool(slices))


def _slices(nvml: Any, handle: Any) -> Iterator[Any]:
    with suppress(nvml.NVMLError):  # a GPU that cannot be sliced
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(nvml.NVMLError):  # no slice has this number
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _listed() -> Iterator[Gpu]:
    for file in sorted(LISTED.glob("*/information")):
        lines = (line.partition(":") for line in file.read_text().splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        if "Model" in facts:
            yield Gpu(facts["Model"], facts.get("GPU UUID", ""), facts.get("Bus Location", ""))
