"""TrialSpec: one fully resolved configuration, and its identity; InvalidTrial: one that cannot exist."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from pydantic import Field

from zbench.spec.base import SpecModel
from zbench.spec.engine import EngineSpec
from zbench.spec.run import RunSpec, VerifySpec
from zbench.spec.workload import WorkloadSpec

NOT_IDENTITY = frozenset(
    {"repeats", "precision", "separate", "max_repeats", "timeout", "memory_limit", "host_command"}
)
"""Keys of `run` excluded from the trial ID: they change how often or how long a trial is measured."""


def config_id(config: Mapping[str, Any]) -> str:
    """Return 12 hex digits of SHA-256 over the canonical JSON of a configuration without `NOT_IDENTITY`."""
    run = {key: value for key, value in config.get("run", {}).items() if key not in NOT_IDENTITY}
    canonical = json.dumps({**config, "run": run}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


class TrialSpec(SpecModel):
    """One point of a sweep. `axes` holds the varied keys and their values, for display and matching."""

    workload: WorkloadSpec
    run: RunSpec
    engine: EngineSpec
    verify: VerifySpec = VerifySpec()
    axes: dict[str, Any] = Field({}, description="The varied keys and their values.")

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration as plain JSON values, without `axes`."""
        return self.model_dump(mode="json", exclude={"axes"})

    def held_against(self) -> "TrialSpec":
        """Return the trial that a command's trial is held against: its own, but for `verify.against`.

        ValidationError where that names no engine keys and values.
        """
        config = self.config()
        changed = config["engine"] | (self.verify.against or {})
        engine = {key: value for key, value in changed.items() if value is not None}  # else its default
        return TrialSpec.model_validate({**config, "engine": engine, "verify": {"mode": self.verify.mode}})

    @cached_property
    def trial_id(self) -> str:
        """The identity of everything that shapes the computation; see `config_id`.

        A key at its default does not count, so a key that is added later leaves every ID as it was.
        """
        return config_id(self.model_dump(mode="json", exclude={"axes"}, exclude_defaults=True))

    def __copy__(self) -> Self:
        """Return a copy without its identity, since `model_copy` changes keys of one."""
        copied = super().__copy__()
        copied.__dict__.pop("trial_id", None)
        return copied


@dataclass(frozen=True, slots=True)
class InvalidTrial:
    """A point that cannot exist, and why; it is recorded with outcome `invalid` and never launched.

    `key` is the one to change, as `engine.zero_stage`.
    """

    axes: dict[str, Any]
    config: dict[str, Any]
    reason: str
    trial_id: str
    key: str = ""

    def document(self) -> dict[str, Any]:
        """Return what a `--json` document says of it."""
        return {"trial_id": self.trial_id, "axes": self.axes, "key": self.key, "reason": self.reason}
