"""TrialSpec: one fully resolved configuration, and its identity."""

import hashlib
import json
from typing import Any

from zbench.spec.base import SpecModel
from zbench.spec.engine import EngineSpec
from zbench.spec.run import RunSpec, VerifySpec
from zbench.spec.workload import WorkloadSpec

_NOT_IDENTITY = {"repeats", "timeout", "memory_limit"}


class TrialSpec(SpecModel):
    """One point of a sweep. `axes` holds the varied keys and their values, for display and matching."""

    workload: WorkloadSpec
    run: RunSpec
    engine: EngineSpec
    verify: VerifySpec = VerifySpec()
    axes: dict[str, Any] = {}

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration as plain JSON values, without `axes`."""
        return self.model_dump(mode="json", exclude={"axes"})

    @property
    def trial_id(self) -> str:
        """Return 12 hex digits of SHA-256 over the canonical JSON of everything that shapes the computation."""
        config = self.config()
        config["run"] = {k: v for k, v in config["run"].items() if k not in _NOT_IDENTITY}
        canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]
