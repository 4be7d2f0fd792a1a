"""Every size and switch changes what is sent, held or overlapped as documented, and no bit of the result."""

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.engine.knobs import LAYERS, WIDTH, Seen
from zbench.engine.assembly import optimizer
from zbench.engine.assembly.settings import sizes_on
from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.partition import Extent, GatherGroup, plan_layout
from zbench.engine.shard_layout import ShardedLayout
from zbench.engine.speculative.updates import LARGEST, cut
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

CHUNK, RANKS = 256, 2
ALIGNMENT = CHUNK * RANKS
UNIT = WIDTH * WIDTH
"""Elements of a layer: a weight that needs no padding."""
LENGTH = LAYERS * UNIT
EVERYTHING = 10**8


def ceil(a: int, b: int) -> int:
    return -(-a // b)


@pytest.fixture
def observe(ranks: RankPool) -> Any:
    """Return what a step does with some setting, on rank 0, after all ranks have proved to do the same."""

    def run(stage: int, **setting: Any) -> Seen:
        spec = {"zero_stage": stage, "param_persistence_threshold": 0, **setting}
        first, second = ranks.run(RANKS, "tests.engine.knobs:observe", spec)
        assert first.events == second.events
        expected = usual(ranks, stage)
        for seen in (first, second):
            assert all(torch.equal(value, expected[name]) for name, value in seen.parameters.items())
        return first

    return run


@cache
def usual(ranks: RankPool, stage: int) -> dict[str, torch.Tensor]:
    """Return the parameters that a stage leaves with every knob as it is by default."""
    return ranks.run(RANKS, "tests.engine.knobs:observe", {"zero_stage": stage})[0].parameters


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_reduce_bucket_size_sets_how_much_is_sent_at_once_and_held_for_it(observe: Any, stage: int) -> None:
    held = []
    for size in (4 * ALIGNMENT, 16 * ALIGNMENT, EVERYTHING):
        seen = observe(stage, reduce_bucket_size=size, dtype="float32")
        assert len(seen.of("reduce")) == ceil(LENGTH, size)
        assert sum(seen.of("reduce")) == LENGTH, "as much is sent, however it is cut"
        assert max(seen.of("reduce")) <= size
        held.append(seen.memory.get("buckets", 0))  # none where a bucket is part of one gradient
        assert held[-1] <= 4 * 4 * size, "two in flight and one that is filled, and what they receive"
    if stage == 0:
        assert held == [0, 0, 0], "all is sent from where it lands"
    else:
        assert held[0] < held[1] <= held[2], "three small buckets are no more than a bucket of everything"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_allgather_bucket_size_sets_how_much_is_gathered_at_once(observe: Any, stage: int) -> None:
    for size in (ALIGNMENT, 4 * ALIGNMENT, EVERYTHING):
        gathered = observe(stage, allgather_bucket_size=size, prefetch_bucket_size=1).of("gather")
        assert max(gathered) <= size
        if stage == 3:  # a layer is gathered for forward and for backward; the first needs no input gradient
            assert len(gathered) == (2 * LAYERS - 1) * ceil(UNIT, size)
            assert sum(gathered) == (2 * LAYERS - 1) * UNIT
        else:
            assert len(gathered) == ceil(LENGTH, size)
            assert sum(gathered) == LENGTH


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sub_group_size_sets_how_much_is_updated_before_its_gather_begins(observe: Any, stage: int) -> None:
    share = LENGTH // (RANKS if stage else 1)
    for size in (CHUNK * 4, CHUNK * 16, EVERYTHING):
        seen = observe(stage, sub_group_size=size, allgather_bucket_size=2 * ALIGNMENT)
        assert max(seen.of("adam")) <= size
        assert sum(seen.of("adam")) == share
        if stage < 3:
            assert len(seen.of("adam")) == ceil(share, size)
        if stage in (1, 2):
            kinds = [kind for kind, _ in seen.events if kind in ("adam", "gather")]
            last_update = len(kinds) - 1 - kinds[::-1].index("adam")
            first_gather = kinds.index("gather")
            assert (first_gather < last_update) == (size < EVERYTHING), "gathers run under later updates"


def billion(device: str) -> ShardedLayout:
    """Return the layout of 24 blocks of 1e9 parameters together, in buckets of the size that is not given."""
    sizes = [n for _ in range(24) for n in (12_582_912, 4_194_304, 12_582_912, 12_582_912, 2048)]
    group = GatherGroup(tuple(reversed(range(len(sizes)))))
    size = sizes_on(EngineSpec(), device).reduction
    return ShardedLayout(plan_layout(sizes, [group], shards=1, block_size=size), 0)


@pytest.mark.parametrize(("device", "buckets", "subgroups"), [("cpu", 202, 2060), ("cuda", 41, 289)])
def test_a_billion_parameters_are_fewer_buckets_and_subgroups_on_a_gpu(
    device: str, buckets: int, subgroups: int
) -> None:
    shard = billion(device)
    assert len(shard.layout.buckets) == buckets
    assert sum(map(len, cut(shard, shard.layout.buckets, LARGEST[device]))) == subgroups


@pytest.mark.parametrize(("device", "missing"), [("cuda", None), ("cuda", "not built"), ("cpu", None)])
def test_one_call_updates_all_where_the_kernels_of_a_gpu_do(
    device: str, missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's take memory of the size."""
    monkeypatch.setattr(optimizer, "cuda_unavailable_reason", lambda: missing)
    shard = billion(device)
    near = DeviceMemory(torch.device(device))
    size = optimizer._sub_group_size(MemoryLayout.of([(near, [Extent(0, 1)])]), shard, device)
    assert size == (shard.length if device == "cuda" and not missing else 10_000_000)


@pytest.mark.parametrize("ahead", [0, 1, 2, LAYERS])
def test_prefetch_bucket_size_sets_how_many_elements_are_gathered_ahead(observe: Any, ahead: int) -> None:
    seen = observe(3, prefetch_bucket_size=max(ahead * UNIT, 1))
    gathers = 0
    gathered = [0]
    share = LENGTH // RANKS
    for k in range(LAYERS):
        there = max(gathered[-1], k + 1)
        low = there - (k + 1) <= ahead / 4  # gathers come in bursts
        gathered.append(min(k + 1 + ahead, LAYERS) if low else there)
    for kind, k in seen.events:
        gathers += kind == "gather"
        if kind == "forward":
            assert gathers == gathered[k + 1]
    for k, held in enumerate(seen.held):
        coming = gathered[k + 1] - k
        rest = k - max(LAYERS - ahead, 1)
        assert held == 4 * (share + UNIT * (coming + max(rest, 0))), "what backward needs at once is kept"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_overlap_comm_lets_reductions_and_backward_go_on_together(observe: Any, stage: int) -> None:
    for overlap in (False, True):
        seen = observe(stage, overlap_comm=overlap, reduce_bucket_size=UNIT)
        order = [kind for kind, _ in seen.events if kind in ("reduce", "reduced", "gradient")]
        between = [a == "reduce" and b == "gradient" for a, b in pairwise(order)]
        assert any(between) == overlap, "gradients are computed while a reduction is under way"
        flying = [order[: k + 1].count("reduce") - order[: k + 1].count("reduced") for k in range(len(order))]
        assert max(flying) == 1, "there is memory for one"


def test_overlap_comm_lets_gathers_and_forward_go_on_together(observe: Any) -> None:
    for overlap in (False, True):
        kinds = [kind for kind, _ in observe(3, overlap_comm=overlap).events]
        before = kinds[: kinds.index("forward")]
        assert (before.count("gather") > 1) == overlap, (
            "the second layer arrives under the first one's forward"
        )
