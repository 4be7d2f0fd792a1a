"""Compiled ZeRO-1 has eager ZeRO-1's bits, however the model falls into graphs and the step is made up."""

from typing import Any

import pytest

from tests.engine.compiled.cases import MODELS
from tests.engine.ranks import RankPool

CASES = "tests.engine.compiled.cases"
SHARED = "two_graphs_share_a_parameter"

THREE = {"gradient_accumulation_steps": 3}
MARKED = {"accumulation_mode": "multi_backward"}
CPU = {"offload_optimizer": "cpu"}
SENT = {"dtype": "bfloat16", "communication_dtype": "float32"}
OPTIONS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "micro_steps": ("one_graph", 3, THREE | {"overlap_comm": False}),
    "marked_offload_one_bucket": (
        "one_graph",
        2,
        MARKED | CPU | SENT | {"gradient_clipping": 0.0, "reduce_bucket_size": 100_000},
    ),
    "no_clipping_bfloat16": ("one_graph", 1, {"gradient_clipping": 0.0, "dtype": "bfloat16"}),
    "cast_to_bfloat16_offload": (
        SHARED,
        3,
        THREE | CPU | {"communication_dtype": "bfloat16", "gradient_clipping": 0.01, "overlap_comm": False},
    ),
    "bfloat16_sums": (SHARED, 2, MARKED | {"dtype": "bfloat16", "grad_accum_dtype": "bfloat16"}),
    "everything_at_once": (SHARED, 3, THREE | CPU | SENT | {"gradient_clipping": 0.01}),
}
"""A model, backwards a step, and keys; each value that a key can have is in some of them, beside others. The
model has several contributions to one gradient where these are cast, or added in a dtype of their own.
"""


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_graph(ranks: RankPool, name: str) -> None:
    first, second = ranks.run(2, f"{CASES}:train_both", name, {})
    assert first.launches == second.launches
    assert len(first.launches[0]) > 1
    assert all(launches == first.launches[0] for launches in first.launches)


def test_engines_side_by_side_do_not_mix(ranks: RankPool) -> None:
    ranks.run(2, f"{CASES}:train_side_by_side", "one_graph_for_many_layers")


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", [SHARED, "partly_trained"])
def test_padding_at_other_world_sizes(ranks: RankPool, name: str, world_size: int) -> None:
    ranks.run(world_size, f"{CASES}:train_both", name, {"gradient_accumulation_steps": 2}, backwards=2)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_kind_of_step(ranks: RankPool, option: str) -> None:
    name, backwards, spec = OPTIONS[option]
    for trained in ranks.run(2, f"{CASES}:train_both", name, spec, backwards=backwards):
        reducing = [bool(launches) for launches in trained.launches]
        assert reducing == ([False] * (backwards - 1) + [True]) * 3, "only the boundary backward reduces"


def test_overflow_in_the_middle_skips_the_same_step(ranks: RankPool) -> None:
    spec = {"dtype": "float16", "loss_scale_window": 1, "initial_loss_scale": 2.0**14}
    for trained in ranks.run(2, f"{CASES}:train_both", SHARED, spec, steps=8):
        skipped = [info.skipped for info in trained.infos]
        assert any(skipped[1:-1])
        assert not skipped[0]


def test_parameters_may_be_unfrozen_in_the_middle(ranks: RankPool) -> None:
    ranks.run(2, f"{CASES}:train_both", "partly_trained", {}, thaw_at=1)


INDUCTOR: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "two_graphs_share_a_parameter": (SHARED, {}, {}),
    "sent_from_where_they_are": ("wide", {"reduce_bucket_size": 10**6}, {}),
    "new_sequence_lengths": ("new_lengths_of_one_graph", {}, {}),
    "no_reduction_first": ("no_reduction_first", {}, {}),
    "no_reduction_in_the_middle": ("no_reduction_in_the_middle", {}, {}),
    "no_reduction_last": ("no_reduction_last", {}, {}),
    "partly_trained": ("partly_trained", {}, {}),
    "checkpointed": ("checkpointed", {}, {}),
    "offload_and_micro_steps": (
        "one_graph_for_many_layers",
        {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2},
        {"backwards": 2},
    ),
}


MORE = ("no_reduction_first", "no_reduction_last")
"""Alike in aot_eager and inductor, before the lowering: `test_every_kind_of_graph` has them by default."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.soak] * (case in MORE)) for case in INDUCTOR]
)
def test_inductor_has_the_bits_of_plain_inductor(ranks: RankPool, case: str) -> None:
    name, spec, how = INDUCTOR[case]
    ranks.run(2, f"{CASES}:train_with_inductor", name, spec, **how)
