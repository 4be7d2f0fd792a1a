"""A runner whose steps take as long as a test says."""

from dataclasses import replace

from zbench.launch.events import Watch
from zbench.record.record import Failure, MemoryPeaks, Record, Timing
from zbench.spec.trial import TrialSpec

from .fakes import FakeRunner


class Paced(FakeRunner):
    """Every step takes so many seconds as the stage says; peaks: device bytes where not 100."""

    def __init__(self, seconds: dict[int, float], peaks: dict[int, int] | None = None) -> None:
        super().__init__()
        self._paces, self._peaks = seconds, peaks or {}

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        """Return a record of the trial, or of its end by the watch."""
        stage = trial.engine.zero_stage
        seconds, peak = self._paces[stage], self._peaks.get(stage, 100)
        timing = Timing([seconds] * 8, seconds, 1000 / seconds, 1000 / seconds)
        record = replace(super().run(trial, repeat=repeat), timing=timing, memory=MemoryPeaks(peak, 0, peak))
        reason = self._stopped(record, watch)
        if reason is None:
            return record
        return replace(record, outcome="timeout", error=Failure("pruned", reason), timing=None, memory=None)
