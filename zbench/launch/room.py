"""Which trials may share a heat: those whose memory fits beside one another."""

from collections.abc import Callable, Sequence
from pathlib import Path

from zbench.record.record import Record
from zbench.spec.trial import TrialSpec

SHARE = 0.8
"""How much of the free memory the contenders of a heat may need together."""

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def uses_cpu(device: str) -> bool:
    """Whether `run.device` means the CPU here."""
    return device == "cpu" or (device == "auto" and not any(file.exists() for file in _GPU_DRIVERS))


class Room:
    """Knows what each trial held when it last ran; else what it can hold at most decides."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def observe(self, record: Record) -> None:
        """Learn from a record."""
        if record.memory is not None and record.memory.peak_rss_bytes is not None:
            ranks = record.config.get("run", {}).get("world_size", 1)
            self._held[record.trial_id] = record.memory.peak_rss_bytes * ranks

    def needed(self, trial: TrialSpec, most_bytes: Callable[[TrialSpec], float]) -> float:
        """Return the bytes that all ranks of a trial held, or can hold at most; infinite if not known."""
        held = self._held.get(trial.trial_id)
        return most_bytes(trial) * trial.run.world_size if held is None else held

    def share(
        self, trials: Sequence[TrialSpec], most_bytes: Callable[[TrialSpec], float], free_bytes: float
    ) -> list[TrialSpec]:
        """Return those of the trials that fit into free memory together, each taken if it fits in its turn.

        most_bytes: an upper bound for one rank of a trial that has not run yet.
        """
        free, needed, fitting = free_bytes * SHARE, 0.0, []
        for trial in trials:
            size = self.needed(trial, most_bytes)
            if needed + size <= free:
                needed += size
                fitting.append(trial)
        return fitting
