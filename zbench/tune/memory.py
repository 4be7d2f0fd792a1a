"""Which trials cannot fit: those whose simulated peak is above the limit (`zbench.estimate`)."""

from collections.abc import Callable

from zbench.estimate.result import Estimate, Outcome
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

Ask = Callable[[TrialSpec], Outcome]
_SAFETY = 1.1
"""Beside a GPU a trial is left out only if above the limit by this factor: CPU paths are simulated."""


def too_large(ask: Ask, trial: TrialSpec, limit: float) -> str | None:
    """Return why a trial cannot fit a limit in bytes; None where it may, or cannot be simulated."""
    found = ask(trial)
    allowed = limit if trial.run.device == "cpu" else limit * _SAFETY
    if not isinstance(found, Estimate) or found.peak_device_bytes <= allowed:
        return None
    needed = format_bytes(found.peak_device_bytes)
    return f"needs {needed} by the simulation, the limit is {format_bytes(limit)}"
