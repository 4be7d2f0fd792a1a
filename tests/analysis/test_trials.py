"""Disturbances of repeats are counted."""

from dataclasses import replace

from zbench.analysis.trials import all_warnings
from zbench.record.summary import ConfigSummary, summarize

from .synthetic import trial

LOADED = "the machine was loaded: other processes took 41% of the CPU time"
DRIFTED = "the machine drifted: by 12 %"


def side(quiet: int, *disturbed: str) -> ConfigSummary:
    """Return a trial with so many quiet repeats, and one with each of these warnings."""
    records = trial([0.1] * (quiet + len(disturbed)))
    warned = [replace(one, warnings=[text]) for one, text in zip(records[quiet:], disturbed, strict=True)]
    (found,) = summarize([*records[:quiet], *warned])
    return found


def test_each_kind_is_counted_over_all_trials() -> None:
    assert all_warnings([side(1, LOADED, DRIFTED), side(2, LOADED)]) == [
        "the machine was loaded in 2 of 6 repeats",
        "the machine drifted in 1 of 6 repeats",
    ]
