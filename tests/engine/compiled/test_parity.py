"""Compiled ZeRO-1 has eager ZeRO-1's bits, however the model falls into graphs and the step is made up."""

from typing import Any

import pytest

from tests.engine.compiled.cases import MODELS
from tests.engine.ranks import RankPool

CASES = "tests.engine.compiled.cases"
SHARED = "two_graphs_share_a_parameter"

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "micro_steps": ({"gradient_accumulation_steps": 3}, {"backwards": 3}),
    "multi_backward": ({"accumulation_mode": "multi_backward"}, {"backwards": 2}),
    "no_clipping": ({"gradient_clipping": 0.0}, {}),
    "offload": ({"offload_optimizer": "cpu"}, {}),
    "everything_at_once": (
        {
            "offload_optimizer": "cpu",
            "gradient_clipping": 0.01,
            "dtype": "bfloat16",
            "communication_dtype": "float32",
            "gradient_accumulation_steps": 2,
        },
        {"backwards": 2},
    ),
    "no_overlap": ({"overlap_comm": False}, {}),
    "one_bucket": ({"reduce_bucket_size": 100_000}, {}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
    "bfloat16_sent_in_float32": ({"dtype": "bfloat16", "communication_dtype": "float32"}, {}),
    "sums_cast_to_bfloat16": (
        {"communication_dtype": "bfloat16", "gradient_accumulation_steps": 2},
        {"backwards": 2},
    ),
    "bfloat16_sums": (
        {"dtype": "bfloat16", "grad_accum_dtype": "bfloat16", "gradient_accumulation_steps": 2},
        {"backwards": 2},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_graph(ranks: RankPool, name: str) -> None:
    ranks.run(2, f"{CASES}:train_both", name, {})


def test_engines_side_by_side_do_not_mix(ranks: RankPool) -> None:
    ranks.run(2, f"{CASES}:train_side_by_side", "one_graph_for_many_layers")


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", [SHARED, "partly_trained"])
def test_padding_at_other_world_sizes(ranks: RankPool, name: str, world_size: int) -> None:
    ranks.run(world_size, f"{CASES}:train_both", name, {"gradient_accumulation_steps": 2}, backwards=2)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_kind_of_step(ranks: RankPool, option: str) -> None:
    spec, how = OPTIONS[option]
    ranks.run(2, f"{CASES}:train_both", SHARED, spec, **how)


def test_overflow_in_the_middle_skips_the_same_step(ranks: RankPool) -> None:
    spec = {"dtype": "float16", "loss_scale_window": 1, "initial_loss_scale": 2.0**14}
    for infos in ranks.run(2, f"{CASES}:train_both", SHARED, spec, steps=8):
        skipped = [info.skipped for info in infos]
        assert True in skipped[1:-1]
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


@pytest.mark.parametrize("case", INDUCTOR)
def test_inductor_has_the_bits_of_plain_inductor(ranks: RankPool, case: str) -> None:
    name, spec, how = INDUCTOR[case]
    ranks.run(2, f"{CASES}:train_with_inductor", name, spec, **how)
