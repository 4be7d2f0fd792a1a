"""What the simulation says of trials: which cannot fit, and how it differs from what was measured."""

from collections.abc import Callable
from dataclasses import replace

from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

Ask = Callable[[TrialSpec], SimulationOutcome]
_AGREES = 0.01
"""A larger difference of the simulated peak from the measured one is told."""
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


def with_simulated(record: Record, ask: Ask, trial: TrialSpec) -> Record:
    """Return the record with the simulated peak; a warning says by how much a measured one differs."""
    found = ask(trial)
    if not isinstance(found, Estimate):
        return record
    both = replace(record, simulated={"peak_device_bytes": found.peak_device_bytes})
    apart = both.simulated_apart
    if apart is None or abs(apart) <= _AGREES:
        return both
    assert both.memory is not None
    assert both.memory.peak_device_bytes is not None
    warning = (
        f"the simulation says {format_bytes(found.peak_device_bytes)} of device memory,"
        f" {abs(apart):.1%} {'more' if apart > 0 else 'less'} than the"
        f" {format_bytes(both.memory.peak_device_bytes)} measured"
    )
    return replace(both, warnings=[*record.warnings, warning])
