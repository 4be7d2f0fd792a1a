"""What is said of a recorded grid."""

from tune.replay.synthetic import synthetic_records, synthetic_sweep

from zbench.bench import grid
from zbench.record.summary import best, summarize


def test_facts_count_the_points_near_the_best() -> None:
    sweep = synthetic_sweep()
    records = [one for one in synthetic_records(sweep, seed=1) if one.outcome == "ok"]
    summaries = summarize(records)
    winner = best(summaries, sweep.objective)
    assert winner is not None
    found = grid.facts(summaries, winner)
    rates = [one.timing.tokens_per_s for one in records if one.timing is not None]
    top = winner.number("tokens_per_s")
    assert top is not None
    assert found["points"] == len(records)
    assert found["points_within_2_percent"] == sum(rate >= 0.98 * top for rate in rates) >= 1
    assert found["points_within_2_percent"] <= found["points_within_10_percent"] <= found["points"]
    assert found["worst_tokens_per_s"] == min(rates)
