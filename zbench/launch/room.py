"""Which trials may share a heat: those whose memory fits beside one another."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from zbench.record.environment import nvidia_smi
from zbench.record.record import Record
from zbench.spec.run import visible_gpus
from zbench.spec.trial import TrialSpec

SHARE = 0.8
"""How much of the free memory the contenders of a heat may need together."""

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def uses_cpu(device: str) -> bool:
    """Whether `run.device` means the CPU here."""
    return device == "cpu" or (device == "auto" and not any(file.exists() for file in _GPU_DRIVERS))


CONTEXT_BYTES = 1 << 30
"""What a process may hold of a GPU beside torch's allocator: CUDA's context, kernels, buffers of NCCL."""

Bytes = tuple[float, float]
"""Bytes of a machine's memory, and of the memory of one GPU: 0 for what uses none."""


def free_bytes() -> Bytes:
    """Return the free memory of this machine, and of that of its GPUs that has the least."""
    gpus = [int(free[0]) << 20 for free in map(str.split, nvidia_smi("gpu=memory.free")) if free[0].isdigit()]
    return psutil.virtual_memory().available, min(gpus, default=0)


def held_bytes(record: Record) -> Bytes | None:
    """Return what all ranks of a trial held; of a GPU what torch's allocator reserved and `CONTEXT_BYTES`."""
    memory = record.memory
    if memory is None or memory.peak_rss_bytes is None:
        return None
    ranks, gpu = record.config.get("run", {}).get("world_size", 1), 0
    if memory.peak_reserved_bytes is not None:
        gpu = (memory.peak_reserved_bytes + CONTEXT_BYTES) * -(-ranks // max(1, visible_gpus()))
    host = max(memory.peak_rss_bytes, memory.peak_host_bytes or 0)  # pinned pages may not count as resident
    return host * ranks, gpu


class Room:
    """Knows what each trial held when it last ran; else what it can hold at most decides."""

    def __init__(self) -> None:
        self._held: dict[str, Bytes] = {}

    def observe(self, record: Record) -> None:
        """Learn from a record."""
        if (held := held_bytes(record)) is not None:
            self._held[record.trial_id] = held

    def needed(self, trial: TrialSpec, most_bytes: Callable[[TrialSpec], float]) -> Bytes:
        """Return the bytes that all ranks of a trial held, or can hold at most; infinite if not known."""
        if (held := self._held.get(trial.trial_id)) is not None:
            return held
        most = most_bytes(trial) if uses_cpu(trial.run.device) else math.inf
        return most * trial.run.world_size, 0

    def share(
        self, trials: Sequence[TrialSpec], most_bytes: Callable[[TrialSpec], float], free: Bytes
    ) -> list[TrialSpec]:
        """Return those of the trials that fit into free memory together, each taken if it fits in its turn.

        most_bytes: an upper bound for one rank of a trial that has not run yet.
        """
        needed, fitting = (0.0, 0.0), []
        for trial in trials:
            own = self.needed(trial, most_bytes)
            both = (needed[0] + own[0], needed[1] + own[1])
            if all(size <= there * SHARE for size, there in zip(both, free, strict=True)):
                needed = both
                fitting.append(trial)
        return fitting
