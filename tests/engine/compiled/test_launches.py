"""Every rank launches the same buckets in the same order, under backward."""

from typing import Any

import pytest

from tests.engine.compiled.cases import MODELS
from tests.engine.ranks import RankPool

LAUNCHES = "tests.engine.compiled.launching"


@pytest.mark.parametrize("name", MODELS)
def test_every_rank_launches_every_bucket_once_and_in_order(ranks: RankPool, name: str) -> None:
    for steps, buckets, _ in ranks.run(2, f"{LAUNCHES}:launches", name):
        assert steps == [buckets, buckets]


def test_ranks_may_be_ready_in_different_order(ranks: RankPool) -> None:
    orders = [
        ready for _, _, ready in ranks.run(2, f"{LAUNCHES}:launches", "ready_in_another_order_on_each_rank")
    ]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("name", ["one_graph", "partly_trained", "new_sequence_lengths"])
def test_buckets_are_launched_under_backward(ranks: RankPool, name: str) -> None:
    """Also those of parameters that get nothing: no bucket waits for the end of backward."""
    for launched, buckets in ranks.run(2, f"{LAUNCHES}:launched_before_the_end", name):
        assert launched == buckets


@pytest.mark.parametrize(
    "spec",
    [{"gradient_accumulation_steps": 3}, {"accumulation_mode": "multi_backward"}],
    ids=lambda s: next(iter(s)),
)
def test_only_the_boundary_backward_reduces(ranks: RankPool, spec: dict[str, Any]) -> None:
    for steps, buckets in ranks.run(2, f"{LAUNCHES}:launched_by_each_backward", spec):
        assert buckets > 1
        assert steps == [[0, 0, buckets], [0, 0, buckets]]
