"""Failing more often: an exact test, where both sides fail now and then."""

import pytest
from scipy.stats import fisher_exact

from zbench.analysis.rows import fails_more
from zbench.record.summary import ConfigSummary, summarize

from .synthetic import record


def side(failed: int, of: int) -> ConfigSummary:
    records = [record(repeat=i, outcome="crashed" if i < failed else "ok") for i in range(of)]
    (found,) = summarize(records)
    return found


@pytest.mark.parametrize(("share", "fails"), [(1, True), (1 - 1e-9, False)])
def test_a_rate_of_failures_at_exactly_the_level_is_higher(share: float, fails: bool) -> None:
    p = fisher_exact([[5, 3], [1, 7]], alternative="greater").pvalue
    assert fails_more(side(1, 8), side(5, 8), share * p) == fails
