"""Compiled ZeRO-1 by inductor: the bits of plain inductor, gradients in autograd's order, and memory.

In one file, so that one worker's ranks import inductor and compile its kernels.
"""

from itertools import product
from typing import Any

import pytest

from tests.engine.covering import by_default
from zbench.testing.ranks import RankPool

CASES = "tests.engine.compiled.inductors"
LIFETIMES = "tests.engine.compiled.lifetimes"

INDUCTOR: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "two_graphs_share_a_parameter": (1, "two_graphs_share_a_parameter", {}, {}),
    "sent_from_where_they_are": (2, "wide", {"reduce_bucket_size": 10**6}, {}),
    "new_sequence_lengths": (1, "new_lengths_of_one_graph", {}, {}),
    "partly_trained_no_reduction_checkpointed": (0, "mixture", {}, {}),
    "offload_and_micro_steps": (
        0,
        "one_graph_for_many_layers",
        {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2},
        {"backwards": 2},
    ),
}
"""Ranks by default (0: none), a model, keys. The soak has all on 1 and 2: each rank compiles for itself, and
`test_parity` has every kind of graph on several.
"""


@pytest.mark.parametrize(
    ("case", "world_size"),
    by_default(lambda case, world: world == INDUCTOR[case][0], product(INDUCTOR, (1, 2))),
)
def test_inductor_has_the_bits_of_plain_inductor(ranks: RankPool, case: str, world_size: int) -> None:
    _, name, spec, how = INDUCTOR[case]
    ranks.run(world_size, f"{CASES}:train_with_inductor", name, spec, **how)


def test_inductor_computes_weights_gradients_in_autograds_order_and_leaves_them(ranks: RankPool) -> None:
    """Buckets are sent in that order: a gradient that came late would hold up all that came before it.

    Generated code hands freed buffers on to others; not those of gradients, which may still be sent.
    """
    ((eager, inductor),) = ranks.run(1, f"{CASES}:orders")
    assert eager == inductor


@pytest.mark.soak
def test_shapes_may_be_dynamic_from_the_start(ranks: RankPool) -> None:
    """By default with aot_eager in `test_backend`, and here with lengths that become dynamic."""
    ranks.run(1, f"{CASES}:shapes_are_dynamic")


def test_a_gradient_that_was_sent_from_where_it_was_is_gone_too(ranks: RankPool) -> None:
    spec = {"compile": "inductor", "reduce_bucket_size": 10**6}
    ranks.run(2, f"{LIFETIMES}:update_meets_only_the_partition", [spec], "wide")


def test_the_peak_is_no_higher_than_that_of_eager_zero_1(ranks: RankPool) -> None:
    eager, compiled = (
        ranks.run(2, f"{LIFETIMES}:whole_peak", how, "headed", 200_000) for how in ("off", "inductor")
    )
    assert all(c <= e for c, e in zip(compiled, eager, strict=True))
