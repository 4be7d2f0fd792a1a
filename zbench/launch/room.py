"""Which trials may be there at once: those whose memory fits beside one another."""

from collections.abc import Sequence

import psutil

from zbench.record.record import Record
from zbench.spec.trial import TrialSpec

SHARE = 0.8
"""How much of the free memory the contenders of a heat may need together."""

UNKNOWN = 0.3 * 2**30
"""Bytes a rank is expected to hold beside its tensors."""


class Room:
    """Knows what each trial held when it last ran."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def observe(self, record: Record) -> None:
        """Learn from a record."""
        if record.memory is not None and record.memory.peak_rss_bytes is not None:
            ranks = record.config["run"]["world_size"]
            self._held[record.trial_id] = record.memory.peak_rss_bytes * ranks

    def share(self, trials: Sequence[TrialSpec]) -> list[TrialSpec]:
        """Return those of the trials, from the first on, that fit into free memory together."""
        free, needed, fitting = psutil.virtual_memory().available * SHARE, 0.0, []
        for trial in trials:
            needed += self._held.get(trial.trial_id, UNKNOWN * trial.run.world_size)
            if needed <= free:
                fitting.append(trial)
        return fitting
