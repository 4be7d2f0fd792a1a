"""Disturbed repeats are left out, or the step time is in doubt."""

from dataclasses import replace

import pytest

from zbench.analysis.trials import all_warnings, doubt, usable
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


@pytest.mark.parametrize(("quiet", "counted"), [(4, 4), (3, 3), (2, 0), (1, 0), (0, 0)])
def test_three_quiet_repeats_beside_a_disturbed_one_show_a_trial_and_fewer_do_not(
    quiet: int, counted: int
) -> None:
    assert len(usable(side(quiet, LOADED))) == counted


@pytest.mark.parametrize("quiet", [1, 2, 3])
def test_where_nothing_was_disturbed_every_repeat_counts(quiet: int) -> None:
    assert len(usable(side(quiet))) == quiet
    assert doubt(side(quiet), side(quiet)) == ""


def test_a_doubt_names_the_side_and_each_kind_of_disturbance() -> None:
    found = doubt(side(3, LOADED), side(2, LOADED, DRIFTED, LOADED))
    assert found == "3 of head's 5 repeats were disturbed: the machine was loaded, the machine drifted"


def test_each_kind_is_counted_over_all_trials() -> None:
    assert all_warnings([side(1, LOADED, DRIFTED), side(2, LOADED)]) == [
        "the machine was loaded in 2 of 6 repeats",
        "the machine drifted in 1 of 6 repeats",
    ]
