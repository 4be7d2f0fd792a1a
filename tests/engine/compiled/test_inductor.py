"""Compiled ZeRO-1 by inductor: the bits of plain inductor, and memory.

By `make check`, and in one file, so that one worker's ranks import inductor and compile its kernels.
"""

from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.engine.compiled.cases import BASE, make, quick_inductor, train_recorded
from tests.engine.compiled.test_lifetimes import update_meets_only_the_partition
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

pytestmark = pytest.mark.check


@quick_inductor()
def train_with_inductor(
    group: dist.ProcessGroup, name: str, spec: dict[str, Any], *, steps: int = 3, backwards: int = 1
) -> None:
    """Assert the bits of plain inductor-compiled stage 0, and nearness to eager ZeRO-1."""
    eager = train_recorded(group, name, spec, steps=steps, backwards=backwards).parameters
    with mock.patch.object(torch.compiler, "cudagraph_mark_step_begin") as marked:
        compiled = {**spec, "compile": "inductor"}
        trained = train_recorded(group, name, compiled, steps=steps, backwards=backwards)
    assert marked.call_count == steps, "CUDA graphs hear of each step"
    model, batch = make(name)
    model.compile()
    engine = build_engine(
        model,
        EngineSpec.model_validate({**BASE, **spec, "zero_stage": 0, "offload_optimizer": "none"}),
        group,
    )
    for step, info in enumerate(trained.infos):
        for micro in range(backwards):
            engine.backward(model(*batch(dist.get_rank(group) + 100 * micro, step)).float())
        assert engine.step() == info
    for key, value in engine.full_parameters().items():
        assert torch.equal(trained.parameters[key], value), key
        torch.testing.assert_close(trained.parameters[key], eager[key], rtol=1e-5, atol=1e-6)
    engine.close()


partition_alone = quick_inductor()(update_meets_only_the_partition)


INDUCTOR: dict[str, tuple[str, dict[str, Any], int]] = {
    "sent_from_where_they_are": ("wide", {"reduce_bucket_size": 10**6}, 1),
    "new_sequence_lengths": ("new_lengths_of_one_graph", {}, 1),
    "two_graphs_share_a_parameter": ("two_graphs_share_a_parameter", {}, 1),
    "partly_trained": ("partly_trained", {}, 1),
    "checkpointed": ("checkpointed", {}, 1),
    "offload_and_micro_steps": (
        "one_graph_for_many_layers",
        {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2},
        2,
    ),
}
"""A model, keys and backwards a step; `test_parity` has every kind of graph on several ranks."""


@pytest.mark.parametrize(("case", "world_size"), [*product(INDUCTOR, (1, 2))])
def test_inductor_has_the_bits_of_plain_inductor(ranks: RankPool, case: str, world_size: int) -> None:
    name, spec, backwards = INDUCTOR[case]
    ranks.run(world_size, f"{__name__}:train_with_inductor", name, spec, backwards=backwards)


def test_memory_of_inductors_gradients_belongs_to_the_step(ranks: RankPool) -> None:
    spec = {"compile": "inductor", "reduce_bucket_size": 10**6}
    ranks.run(2, f"{__name__}:partition_alone", [spec], "wide")
