"""Buckets are launched under backward, in the same order on ranks whose gradients come in another order.

That every backward launches eager ZeRO-1's buckets is asserted wherever `cases.train_both` is used.
"""

import pytest

from tests.engine.ranks import RankPool

READINESS = "tests.engine.compiled.launching:readiness"


@pytest.mark.parametrize("name", ["one_graph", "partly_trained", "new_sequence_lengths"])
def test_buckets_are_launched_under_backward(ranks: RankPool, name: str) -> None:
    """Also those of parameters that get nothing: no bucket waits for the end of backward."""
    for _, under_backward, launched in ranks.run(2, READINESS, name):
        assert len(launched) > 1
        assert under_backward == launched


def test_ranks_may_be_ready_in_different_order(ranks: RankPool) -> None:
    (first, _, launched), (second, _, same) = ranks.run(2, READINESS, "ready_in_another_order_on_each_rank")
    assert first != second
    assert launched == same
