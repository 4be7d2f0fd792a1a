"""Jobs that one machine started may have run on unlike ones: their records say so."""

from dataclasses import replace

import pytest

from zbench.analysis.compare import Settings, compare_runs
from zbench.analysis.trials import RunResults
from zbench.errors import IncomparableError

from .synthetic import results, trial

EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]


@pytest.mark.parametrize(
    ("base", "head", "says"),
    [
        (["A"], ["B"], "ran on: A, B"),
        (["A", "B"], ["A"], "ran on: A and B, A"),
        (["A"], ["A"], None),
        ([None], ["A"], None),
        (["A", None], ["A"], None),
    ],
)
def test_where_repeats_ran_counts_more_than_where_they_were_started(
    base: list[str | None], head: list[str | None], says: str | None
) -> None:
    def on(machines: list[str | None], name: str) -> RunResults:
        repeats = [replace(r, machine=machines[r.repeat % len(machines)]) for r in trial(EVEN)]
        return results(repeats, name)

    if says is None:
        assert compare_runs(on(base, "base"), on(head, "head"), Settings()).unlike == ()
    else:
        with pytest.raises(IncomparableError, match=says):
            compare_runs(on(base, "base"), on(head, "head"), Settings())
