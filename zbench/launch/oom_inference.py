"""Skips points that are larger than one that ran out of memory: they need at least as much memory.

Pure bookkeeping over configurations. A point is larger if every size is at least as large, one is larger, and
all other keys are equal. Sizes are only the keys whose growth can never free memory.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

from zbench.record.record import Failure, Record
from zbench.spec.trial import NOT_IDENTITY, TrialSpec

KIND = "implied"
_GROWING = {
    ("workload",): ("micro_batch_size", "sequence_length"),
    ("engine",): (
        "reduce_bucket_size", "allgather_bucket_size", "prefetch_bucket_size", "param_persistence_threshold",
    ),
    ("workload", "options"): ("layers", "width", "hidden", "vocabulary"),
}  # fmt: skip
"""Section of a configuration -> its keys that are sizes."""

_Sized = tuple[dict[str, float], str]
"""The sizes of a configuration, and the rest, which must be equal to compare them."""


class ImpliedOom:
    """Remembers which configurations ran out of memory, and says which others must run out of it, too."""

    def __init__(self) -> None:
        self._failed: list[tuple[_Sized, str]] = []

    def observe(self, record: Record) -> None:
        """Note a record, if it ran out of memory; an implied out-of-memory does not count."""
        if record.outcome == "oom" and (record.error is None or record.error.kind != KIND):
            self._failed.append((_sized(record.config), record.trial_id))

    def failure(self, trial: TrialSpec) -> Failure | None:
        """Return what to record instead of running a trial, or None where it should run."""
        sizes, rest = _sized(trial.config())
        for (known, other), trial_id in self._failed:
            if rest != other or sizes.keys() != known.keys():
                continue
            larger = [key for key in sizes if sizes[key] > known[key]]
            if larger and all(sizes[key] >= known[key] for key in sizes):
                what = " and ".join(
                    f"{key} {sizes[key]:.15g} is larger than {known[key]:.15g}" for key in larger
                )
                return Failure(KIND, f"oom (implied): {what}, where trial {trial_id} ran out of memory")
        return None


def _sized(config: Mapping[str, Any]) -> _Sized:
    rest = copy.deepcopy(dict(config))
    if isinstance(run := rest.get("run"), dict):
        rest["run"] = {key: value for key, value in run.items() if key not in NOT_IDENTITY}
    sizes: dict[str, float] = {}
    for path, keys in _GROWING.items():
        section: Any = rest
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        for key in keys if isinstance(section, dict) else ():
            if isinstance(section.get(key), int | float) and not isinstance(section[key], bool):
                sizes[key] = section.pop(key)
    return sizes, json.dumps(rest, sort_keys=True)
