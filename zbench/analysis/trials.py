"""What a run says of each configuration: its records, gathered and summarised."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbench.record.record import VERDICT_ORDER, Outcome, Record, VerdictName


@dataclass(frozen=True, slots=True)
class TrialResults:
    """All repeats of one configuration in one run."""

    trial_id: str
    axes: Mapping[str, Any]
    config: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def label(self) -> str:
        """Return the axes as `key=value` words, or the trial id where nothing varies."""
        return label_of(self.axes, self.trial_id)

    @property
    def finished(self) -> tuple[Record, ...]:
        """Return the repeats that ran to their end."""
        return tuple(record for record in self.records if record.outcome == "ok")

    @property
    def outcome(self) -> Outcome:
        """Return `ok` if every repeat finished, else how the first that did not ended."""
        return next((record.outcome for record in self.records if record.outcome != "ok"), "ok")

    @property
    def failure_message(self) -> str:
        """Return why the first failed repeat failed, in one line."""
        errors = (record.error for record in self.records if record.error is not None)
        return next((error.message.strip().split("\n")[0] for error in errors), "")

    @property
    def verdict(self) -> VerdictName:
        """Return the worst verdict of the finished repeats; one wrong repeat makes the trial wrong."""
        judged = [record.correctness.verdict for record in self.finished]
        known = [verdict for verdict in judged if verdict != "unchecked"]
        return min(known, key=VERDICT_ORDER.index) if known else "unchecked"

    def step_seconds(self) -> list[float]:
        """Return the median step of each finished repeat, in seconds."""
        return [record.timing.median_step_s for record in self.finished if record.timing is not None]

    def step_logs(self) -> tuple[float, ...]:
        """Return the natural logarithms of `step_seconds`."""
        return tuple(math.log(seconds) for seconds in self.step_seconds())

    def median_step_s(self) -> float | None:
        """Return the median over repeats of the median step, in seconds."""
        return _median(self.step_seconds())

    def tokens_per_s(self) -> float | None:
        """Return the median over repeats of tokens trained a second."""
        return _median([record.timing.tokens_per_s for record in self.finished if record.timing is not None])

    def memory(self, name: str) -> tuple[list[int], bool]:
        """Return one peak in bytes a finished repeat, by its name in Memory, and whether all are exact."""
        memories = [record.memory for record in self.finished if record.memory is not None]
        peaks = [getattr(memory, name) for memory in memories]
        return [peak for peak in peaks if peak is not None], all(memory.exact for memory in memories)

    def traffic(self) -> tuple[list[int], list[int]]:
        """Return calls and payload bytes of all collectives of one step, one of each a finished repeat."""
        rows = [record.traffic.values() for record in self.finished if record.timing is not None]
        return [sum(t.calls for t in row) for row in rows], [sum(t.bytes for t in row) for row in rows]


@dataclass(frozen=True, slots=True)
class Source:
    """Where results came from. `fingerprint` stands for the machine, `commit` for the code, if known."""

    name: str
    path: str = ""
    run_ids: tuple[str, ...] = ()
    sweep: str | None = None
    fingerprint: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    created: str | None = None


@dataclass(frozen=True, slots=True)
class RunResults:
    """One side of a comparison: its trials in the order in which they first appear."""

    source: Source
    trials: tuple[TrialResults, ...]


def group_records(records: Iterable[Record]) -> tuple[TrialResults, ...]:
    """Gather records by trial id, in order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.trial_id, []).append(record)
    return tuple(
        TrialResults(trial_id, group[0].axes, group[0].config, tuple(group))
        for trial_id, group in groups.items()
    )


def label_of(axes: Mapping[str, Any], otherwise: str) -> str:
    """Return axes as `key=value` words; `otherwise` where there are none."""
    return " ".join(f"{key}={_plain(value)}" for key, value in axes.items()) or otherwise


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
