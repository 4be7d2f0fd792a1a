"""What an out-of-memory says of larger points: they need at least as much, so they need not be run.

Pure bookkeeping over configurations. A point is larger where every size is at least as large, one is larger,
and all else is the same. Sizes are only those whose growth can never free memory.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zbench.record.record import Failure, Record
from zbench.spec.keys import Path, value_at
from zbench.spec.trial import NOT_IDENTITY, TrialSpec

KIND = "implied"
GROWING: tuple[Path, ...] = (
    ("workload", "micro_batch_size"),
    ("workload", "sequence_length"),
    ("engine", "reduce_bucket_size"),
    ("engine", "allgather_bucket_size"),
    ("engine", "prefetch_bucket_size"),
    ("engine", "param_persistence_threshold"),
)
_OPTIONS: Path = ("workload", "options")
_GROWING_OPTIONS = frozenset({"layers", "width", "hidden", "vocabulary"})


@dataclass(frozen=True, slots=True)
class _Size:
    """A configuration as sizes that grow memory, and the rest, which must be equal to compare them."""

    sizes: Mapping[str, float]
    rest: str

    def exceeds(self, other: "_Size") -> list[str]:
        """Return the keys in which this is larger, none of them being smaller; empty if it is not larger."""
        if self.rest != other.rest or self.sizes.keys() != other.sizes.keys():
            return []
        if any(self.sizes[key] < other.sizes[key] for key in self.sizes):
            return []
        return [key for key in self.sizes if self.sizes[key] > other.sizes[key]]


class ImpliedOom:
    """Remembers which configurations ran out of memory, and says which others therefore must."""

    def __init__(self) -> None:
        self._failed: list[tuple[_Size, str]] = []

    def observe(self, record: Record) -> None:
        """Learn from a record; only an out-of-memory that was seen, not implied, teaches anything."""
        seen = record.error is None or record.error.kind != KIND
        if record.outcome == "oom" and seen:
            self._failed.append((_sized(record.config), record.trial_id))

    def reason(self, trial: TrialSpec) -> str | None:
        """Return why a trial must run out of memory too, or None where nothing is known."""
        mine = _sized(trial.config())
        for other, trial_id in self._failed:
            keys = mine.exceeds(other)
            if keys:
                what = " and ".join(
                    f"{key} {_plain(mine.sizes[key])} is larger than {_plain(other.sizes[key])}"
                    for key in keys
                )
                return f"oom (implied): {what}, where trial {trial_id} ran out of memory"
        return None

    def failure(self, trial: TrialSpec) -> Failure | None:
        """Return what to record instead of running a trial, or None where it should run."""
        reason = self.reason(trial)
        return None if reason is None else Failure(KIND, reason)


def _sized(config: Mapping[str, Any]) -> _Size:
    rest = json.loads(json.dumps(config))
    run = rest.get("run")
    rest["run"] = {k: v for k, v in run.items() if k not in NOT_IDENTITY} if isinstance(run, dict) else run
    sizes: dict[str, float] = {}
    for path in GROWING:
        value = value_at(config, path)
        if isinstance(value, int | float):
            sizes[path[-1]] = value
            _holder(rest, path).pop(path[-1], None)
    options = value_at(config, _OPTIONS)
    for key, value in options.items() if isinstance(options, Mapping) else ():
        if isinstance(value, int | float) and not isinstance(value, bool) and key in _GROWING_OPTIONS:
            sizes[key] = value
            _holder(rest, (*_OPTIONS, key)).pop(key, None)
    return _Size(sizes, json.dumps(rest, sort_keys=True))


def _holder(config: dict[str, Any], path: Path) -> dict[str, Any]:
    block = config
    for part in path[:-1]:
        block = block[part]
    return block


def _plain(value: float) -> str:
    return f"{value:g}" if value != int(value) else str(int(value))
