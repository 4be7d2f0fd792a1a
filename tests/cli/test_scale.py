"""What commands cost on large sweeps and many runs."""

from pathlib import Path

import pytest

from tools.benchmarks import scale
from zbench.record.store import load_records


def test_the_cost_of_a_command_is_that_of_its_process() -> None:
    cost = scale.cost_of("help", ["--help"], most_s=0.0)
    assert cost.cpu_s > 0
    assert cost.peak_bytes > scale.MIB
    assert not cost.is_met
    with pytest.raises(RuntimeError, match="ended with 2"):
        scale.cost_of("nothing", ["show", "no-such-run"], 1.0)


def test_heats_of_a_round_have_all_of_its_repeats_and_overlap_those_of_another(tmp_path: Path) -> None:
    sweep = scale.write_sweep(tmp_path / "sweep.json", 20)
    records = load_records(scale.write_run(sweep, tmp_path, "one", in_heats=True))
    heats: dict[str, set[str]] = {}
    for record in records:
        assert record.heat is not None
        heats.setdefault(record.heat.name, set()).add(record.trial_id)
    assert sorted(map(len, heats.values())) == [4, 4, 8, 8, 8, 8]
    assert len({*map(frozenset, heats.values())}) == 6


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_large_sweeps_and_many_runs_stay_within_the_bars(tmp_path: Path) -> None:
    """CPU time on a quiet machine."""
    costs = scale.costs(tmp_path, configurations=5_000, runs=3_000)
    assert [cost.row() for cost in costs if not cost.is_met] == []
