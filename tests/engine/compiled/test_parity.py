"""Compiled ZeRO-1 has eager ZeRO-1's bits, however the model falls into graphs and the step is made up."""

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.engine.compiled.cases import BASE, MODELS, make, train_recorded
from tests.engine.covering import by_default
from tests.engine.lattice import PLACES
from tests.engine.plain import assert_same
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

CASES = "tests.engine.compiled.cases"
SHARED = "two_graphs_share_a_parameter"

THREE = {"gradient_accumulation_steps": 3}
MARKED = {"accumulation_mode": "multi_backward"}
CPU = {"offload_optimizer": "cpu"}
SENT = {"dtype": "bfloat16", "communication_dtype": "float32"}
CAST = {"communication_dtype": "bfloat16", "gradient_clipping": 0.01, "overlap_comm": False}
ONE_BUCKET = {"gradient_clipping": 0.0, "reduce_bucket_size": 100_000}
OPTIONS: dict[str, tuple[int, str, int, dict[str, Any]]] = {
    "micro_steps": (0, "one_graph", 3, THREE | {"overlap_comm": False}),
    "marked_offload_one_bucket": (2, "one_graph", 2, MARKED | CPU | SENT | ONE_BUCKET),
    "no_clipping_bfloat16": (0, "one_graph", 1, {"gradient_clipping": 0.0, "dtype": "bfloat16"}),
    "cast_to_bfloat16_offload": (2, SHARED, 3, THREE | CPU | CAST),
    "bfloat16_sums": (2, SHARED, 2, MARKED | {"dtype": "bfloat16", "grad_accum_dtype": "bfloat16"}),
    "everything_at_once": (1, SHARED, 3, THREE | CPU | SENT | {"gradient_clipping": 0.01}),
}
"""Ranks by default (0: none; `make check` has 1, 2 and 3), a model, backwards a step, and keys; each value of
a key is in some of them, beside others. The model has several contributions to one gradient where these are
cast, or added in a dtype of their own.
"""


USUAL = ("two_graphs_share_a_parameter", "partly_trained", "ready_in_another_order_on_each_rank")
"""Kinds of graph by default, on two ranks; `make check` has every kind on 1, 2 and 3."""
UNDER_BACKWARD = ("one_graph", "partly_trained", "new_sequence_lengths")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("name", "world_size"),
    by_default(lambda name, world: world == 2 and name in USUAL, product(MODELS, (1, 2, 3))),
)
def test_every_kind_of_graph(ranks: RankPool, name: str, world_size: int, place: str) -> None:
    """All buckets are launched under backward, also those of parameters that get nothing: none waits for its
    end (in the first backward some may: which gradients a graph never yields is known once it is compiled).
    """
    results = ranks.run(world_size, f"{CASES}:train_both", name + place, {})
    first = results[0]
    assert len(first.launches[0]) > 1
    for trained in results:
        assert all(launches == first.launches[0] for launches in trained.launches)
        if name in UNDER_BACKWARD:
            assert trained.under_backward[1:] == trained.launches[1:]
    if name == "ready_in_another_order_on_each_rank" and world_size > 1:
        assert first.ready != results[1].ready


def train_side_by_side(group: dist.ProcessGroup, name: str) -> None:
    """Assert that two models, compiled by engines of their own and trained in turns, do not disturb each
    other: both end with the bits of the one that is trained alone.
    """
    alone = train_recorded(group, name, {}).parameters
    pairs = []
    for _ in range(2):
        torch.manual_seed(3)
        model = MODELS[name][0]()
        spec = EngineSpec.model_validate({**BASE, "compile": "aot_eager"})
        pairs.append((model, build_engine(model, spec, group)))
    _, batch = make(name)
    for step in range(3):
        losses = [model(*batch(dist.get_rank(group), step)) for model, _ in pairs]
        for (_, engine), loss in zip(pairs, losses, strict=True):
            engine.backward(loss)
        for _, engine in pairs:
            engine.step()
    for _, engine in pairs:
        assert_same(engine.full_parameters(), alone)
        engine.close()


@pytest.mark.check
def test_engines_side_by_side_do_not_mix(ranks: RankPool) -> None:
    ranks.run(2, f"{__name__}:train_side_by_side", "one_graph_for_many_layers")


@pytest.mark.check
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("option", "world_size"),
    by_default(lambda option, world: world == OPTIONS[option][0], product(OPTIONS, (1, 2, 3))),
)
def test_every_kind_of_step(ranks: RankPool, option: str, world_size: int, place: str) -> None:
    _, name, backwards, spec = OPTIONS[option]
    for trained in ranks.run(world_size, f"{CASES}:train_both", name + place, spec, backwards=backwards):
        reducing = [bool(launches) for launches in trained.launches]
        assert reducing == ([False] * (backwards - 1) + [True]) * 3, "only the boundary backward reduces"


def test_overflow_in_the_middle_skips_the_same_step(ranks: RankPool) -> None:
    spec = {"dtype": "float16", "loss_scale_window": 1, "initial_loss_scale": 2.0**14}
    for trained in ranks.run(2, f"{CASES}:train_both", SHARED, spec, steps=8):
        skipped = [info.skipped for info in trained.infos]
        assert any(skipped[1:-1])
        assert not skipped[0]


def test_parameters_may_be_frozen_for_a_step(ranks: RankPool) -> None:
    spec = {"gradient_accumulation_steps": 2}
    ranks.run(2, f"{CASES}:train_both", "partly_trained", spec, frozen_in=1, backwards=2)
