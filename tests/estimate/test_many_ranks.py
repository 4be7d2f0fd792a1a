"""What a step of a large model launches at many ranks: budgets, counted on tensors without data.

Counts are per block, so a few blocks of the right size stand for all; the soak counts whole models.
"""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.shapes import BLOCKS, SHAPES
from zbench.engine.assembly.settings import GPU_SIZES
from zbench.engine.transport import base
from zbench.estimate.result import StepLaunches
from zbench.estimate.simulate import simulate
from zbench.spec.trial import TrialSpec

PER_NODE = 8
FEW = 4
OF_BLOCK = 9
"""Parameters of a block; two of them are norms, which stay gathered."""
FAR = {"offload_optimizer": "cpu", "offload_param": "cpu"}
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("7B", 8, {"zero_stage": 1}),
    ("7B", 64, {"zero_stage": 2}),
    ("7B", 256, {"zero_stage": 2, "offload_optimizer": "cpu"}),
    ("7B", 8, {"zero_stage": 3}),
    ("7B", 64, {"zero_stage": 3, **FAR}),
    ("70B", 256, {"zero_stage": 3}),
    ("7B", 64, {"zero_stage": 3, "shard_group_size": 8}),
]


def elements(shape: str, blocks: int) -> int:
    """Return the elements of all trained parameters."""
    width, hidden, key_width = (SHAPES[shape][key] for key in ("width", "hidden", "key_width"))
    block = 2 * width * width + 2 * width * key_width + 3 * width * hidden + 2 * width
    return blocks * block + 2 * 32_000 * width


def launches(shape: str, world_size: int, blocks: int = FEW, **engine: Any) -> StepLaunches:
    """Return what one step of one rank launches; eight ranks are a node."""
    workload = {
        "model": "tests.estimate.shapes:Llama",
        "options": {"layers": blocks, **SHAPES[shape]},
        "sequence_length": 8,
    }
    run = {"world_size": world_size, "nodes": world_size // PER_NODE, "device": "cuda"}
    engine = {"dtype": "bfloat16", **engine}
    trial = TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})
    return simulate(trial, Path.cwd()).counts


def check(shape: str, world_size: int, engine: dict[str, Any], blocks: int = FEW) -> None:
    """Hold a step to the budgets."""
    counts = launches(shape, world_size, blocks, **engine)
    parameters = OF_BLOCK * blocks + 2
    groups = blocks + 2
    reductions = counts.collectives["reduce_scatter"]["calls"]
    gathers = counts.collectives["all_gather"]["calls"]
    assert counts.gradient_copies <= parameters + reductions
    if engine["zero_stage"] < 3:
        size = GPU_SIZES["reduce_bucket_size"]
        assert reductions + gathers <= 2.2 * math.ceil(elements(shape, blocks) / size)
        assert counts.gathers == {"calls": 0, "exposed": 0}
    else:
        assert reductions <= groups + 1
        assert groups < counts.gathers["calls"] <= 1.1 * 2 * groups
        assert 0 < counts.gathers["exposed"] <= 2
    assert (counts.inter_node_bytes > 0) == (world_size > PER_NODE)


@pytest.mark.parametrize(("shape", "world_size", "engine"), CASES)
def test_a_step_keeps_its_budgets_at_any_number_of_ranks(
    shape: str, world_size: int, engine: dict[str, Any]
) -> None:
    check(shape, world_size, engine)


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [8, 64, 256])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", ["7B", "70B"])
def test_whole_models_keep_them(shape: str, stage: int, world_size: int) -> None:
    check(shape, world_size, {"zero_stage": stage}, BLOCKS[shape])


@pytest.mark.soak
@pytest.mark.parametrize("more", [FAR, {"shard_group_size": 8}, {"prefetch_bucket_size": 1}])
def test_offload_and_shard_groups_of_a_whole_model_keep_them(more: dict[str, Any]) -> None:
    check("7B", 64, {"zero_stage": 3, **more}, BLOCKS["7B"])


@pytest.mark.parametrize("world_size", [8, 64])
def test_a_bucket_is_summed_by_one_operator_whoever_adds(world_size: int) -> None:
    """A backend's sums are cast to float32, those in rank order are added in it."""
    counts = [launches("7B", world_size, 2, zero_stage=2, reduction=r) for r in ("backend", "rank_order")]
    assert counts[0].launches == counts[1].launches
    assert counts[1].collectives["all_to_all"] == counts[0].collectives["reduce_scatter"]


@pytest.mark.parametrize("stage", [1, 3])
def test_of_a_gradient_a_share_leaves_a_node_that_is_a_shard_group(stage: int) -> None:
    far = 128
    sent = 2 * elements("7B", 2)
    apart = launches("7B", far, 2, zero_stage=stage, shard_group_size=PER_NODE)
    assert 0 < apart.inter_node_bytes <= 0.3 * sent * PER_NODE
    together = launches("7B", far, 2, zero_stage=1).inter_node_bytes
    assert together <= 1.1 * 2 * sent, "a ring's reduction and gather"


def test_at_least_the_next_group_is_begun_ahead_whatever_the_window() -> None:
    counts = launches("7B", 8, zero_stage=3, prefetch_bucket_size=1)
    assert counts.gathers["exposed"] <= 2
    alone = launches("7B", 8, zero_stage=3, overlap_comm=False)
    assert alone.gathers["exposed"] == alone.gathers["calls"]


def test_shard_groups_are_simulated_on_cpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a thread adds over the groups; tensors without data work on one thread only."""
    monkeypatch.setattr(base, "WorkerThread", None)
    workload = {"model": "gpt", "preset": "nano", "sequence_length": 8}
    document = {"workload": workload, "run": {"world_size": 1024, "device": "cpu"}}
    alone, grouped = (
        simulate(TrialSpec.model_validate({**document, "engine": engine}), Path.cwd())
        for engine in ({"zero_stage": 2}, {"zero_stage": 2, "shard_group_size": 8})
    )
    assert grouped.traffic["reduce_scatter"] == alone.traffic["reduce_scatter"]
    assert grouped.traffic["all_gather"].bytes > alone.traffic["all_gather"].bytes
