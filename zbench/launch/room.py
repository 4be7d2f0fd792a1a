"""Which trials may share a heat: those whose memory fits beside one another."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from zbench import gpus
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

SHARE = 0.8
"""How much of the free memory a heat may need; the machine's yardstick needs some of the rest."""

CONTEXT_BYTES = 1 << 30
"""What a process may hold of a GPU beside torch's allocator, where no record says what it held."""

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def uses_cpu(device: str) -> bool:
    """Whether `run.device` means the CPU here: there is no GPU, or `CUDA_VISIBLE_DEVICES` hides all."""
    if device != "auto":
        return device == "cpu"
    has_driver = any(file.exists() for file in _GPU_DRIVERS)
    return not has_driver or (bool(gpus.all_gpus()) and not gpus.visible_gpus())


class Bytes(NamedTuple):
    """Memory of all ranks of a trial: the host's, and that of the GPU that most of them share, if any."""

    host: float
    gpu: float = 0

    def __str__(self) -> str:
        return format_bytes(self.host) + (f" and {format_bytes(self.gpu)} of a GPU" if self.gpu else "")

    def fits_into(self, free: Self) -> bool:
        """Whether a heat may hold it where so much is free."""
        return self.host <= free.host * SHARE and self.gpu <= free.gpu * SHARE


def held_bytes(record: Record) -> Bytes | None:
    """Return what a trial held; of a GPU what torch's allocator reserved, and what was held beside it."""
    memory = record.memory
    if memory is None or memory.peak_rss_bytes is None:
        return None
    ranks = record.config.get("run", {}).get("world_size", 1)
    gpu = 0
    if memory.peak_reserved_bytes is not None:
        context = CONTEXT_BYTES if memory.context_bytes is None else memory.context_bytes
        gpu = (memory.peak_reserved_bytes + context) * -(-ranks // max(1, len(gpus.visible_gpus())))
    host = max(memory.peak_rss_bytes, memory.peak_host_bytes or 0)  # pinned pages may not count as resident
    return Bytes(host * ranks, gpu)


def bounds_memory_of_alone(trial: TrialSpec) -> bool:
    """Whether compute alone, on the same workload, needs no more of a GPU: both hold the whole state."""
    return trial.engine.zero_stage == 0 and trial.engine.engine in ("builtin", "ddp", "deepspeed")


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
        return Bytes(most * trial.run.world_size)

    def share(
        self, trials: Sequence[TrialSpec], most_bytes: Callable[[TrialSpec], float], free_bytes: float
    ) -> list[TrialSpec]:
        """Return those of the trials that fit into free memory together, each taken if it fits in its turn.

        most_bytes: an upper bound for one rank of a trial that has not run yet.
        """
        each = [(trial, self.needed(trial, most_bytes)) for trial in trials]
        free = Bytes(free_bytes, gpus.free_bytes() if any(need.gpu for _, need in each) else 0)
        needed = Bytes(0)
        fitting = list[TrialSpec]()
        for trial, need in each:
            both = Bytes(needed.host + need.host, needed.gpu + need.gpu)
            if both.fits_into(free):
                needed = both
                fitting = [*fitting, trial]
        return fitting

    def has_room_for_alone(self, heat: Sequence[TrialSpec]) -> bool:
        """Whether compute alone fits on the GPU of a heat, too, where it is known what each trial held.

        On a CPU it always does: what a heat leaves of the memory is for it.
        """
        held = [(trial, self._held[trial.trial_id].gpu) for trial in heat if trial.trial_id in self._held]
        needed = sum(gpu * (1 + bounds_memory_of_alone(trial)) for trial, gpu in held)
        return needed == 0 or needed <= gpus.free_bytes() * SHARE
