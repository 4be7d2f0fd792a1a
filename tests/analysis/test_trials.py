"""Disturbances of repeats are counted."""

from dataclasses import replace

from zbench.analysis.trials import all_warnings
from zbench.record.record import Disturbance
from zbench.record.summary import ConfigSummary, summarize

from .synthetic import trial

LOADED, HOT = Disturbance(load=0.41), Disturbance(load=0.5, throttled=2)


def side(quiet: int, *disturbed: Disturbance) -> ConfigSummary:
    """Return a trial with so many quiet repeats, and one with each of these disturbances."""
    records = trial([0.1] * (quiet + len(disturbed)))
    loud = [replace(one, disturbance=kind) for one, kind in zip(records[quiet:], disturbed, strict=True)]
    calm = [replace(one, disturbance=Disturbance(load=0.01)) for one in records[:quiet]]
    (summary,) = summarize([*calm, *loud])
    return summary


def test_each_kind_is_counted_over_all_trials() -> None:
    assert all_warnings([side(1, LOADED, HOT), side(2, LOADED)]) == [
        "the machine was loaded in 3 of 6 repeats",
        "the CPU was throttled for heat in 1 of 6 repeats",
    ]
