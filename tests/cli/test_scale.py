"""What commands cost on large sweeps and many runs."""

from pathlib import Path

import pytest

from tools.benchmarks import scale


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_large_sweeps_and_many_runs_stay_within_the_bars(tmp_path: Path) -> None:
    """CPU time on a quiet machine."""
    costs = scale.costs(tmp_path, configurations=5_000, runs=3_000)
    assert [cost.row() for cost in costs if not cost.is_met] == []
