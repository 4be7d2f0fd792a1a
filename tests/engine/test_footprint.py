"""Bytes held and bytes sent by each stage equal their formulas."""

import pytest

from tests.engine.footprints import SIZES
from zbench.testing.ranks import RankPool

CHUNK = 256


def flat_length(world_size: int) -> int:
    """Elements of the flat layout: each parameter padded to a chunk, the whole to a chunk for every rank."""
    padded = sum(-(-size // CHUNK) * CHUNK for size in SIZES)
    return -(-padded // (world_size * CHUNK)) * world_size * CHUNK


def measure(ranks: RankPool, world_size: int, **spec: object) -> list[tuple[dict, dict]]:  # type: ignore[type-arg]
    return ranks.run(world_size, "tests.engine.footprints:footprint", spec)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("stage", "offload"), [(0, "none"), (1, "none"), (2, "none"), (1, "cpu"), (2, "cpu")]
)
def test_replicated_parameters_and_the_optimizers_share_that_offload_moves_to_the_host(
    ranks: RankPool, stage: int, offload: str, world_size: int
) -> None:
    length = flat_length(world_size)
    share = length if stage == 0 else length // world_size
    here, elsewhere = ("", "host_") if offload == "none" else ("host_", "")
    for memory, _ in measure(ranks, world_size, zero_stage=stage, offload_optimizer=offload):
        assert memory["parameters"] == 4 * length
        assert memory[f"{here}gradients"] == 4 * share
        assert memory[f"{here}moments"] == 8 * share
        assert not {f"{elsewhere}{kind}" for kind in ("moments", "master", "gradients")} & set(memory)
        masters = 0 if offload == "none" else 4 * share
        assert memory.get(f"{here}master", 0) == masters, "float32 parameters are their own master weights"


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stage_3_keeps_a_share_of_everything(ranks: RankPool, world_size: int, dtype: str) -> None:
    """And no second copy of the parameters: what is stored are the master weights."""
    spec = {"zero_stage": 3, "param_persistence_threshold": 0, "dtype": dtype}
    for memory, _ in measure(ranks, world_size, **spec):
        # Each gather unit (a layer) is padded by itself.
        groups = [SIZES[0] + CHUNK - SIZES[0] % CHUNK + CHUNK, SIZES[2] + CHUNK - SIZES[2] % CHUNK + CHUNK]
        alignment = world_size * CHUNK
        share = sum(-(-group // alignment) * alignment for group in groups) // world_size
        assert memory["parameters"] == 4 * share
        assert memory["moments"] == 8 * share
        assert "master" not in memory


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("mode", ["micro_steps", "multi_backward", "unmanaged"])
@pytest.mark.parametrize("reduce_at", ["auto", "each_backward"])
def test_stage_1_with_offload_adds_up_several_backwards_in_host_memory(
    ranks: RankPool, reduce_at: str, mode: str, world_size: int
) -> None:
    length = flat_length(world_size)
    spec = {"zero_stage": 1, "offload_optimizer": "cpu", "accumulation_mode": mode, "reduce_at": reduce_at}
    spec |= {"gradient_accumulation_steps": 3 if mode == "micro_steps" else 1}
    unreduced = length if reduce_at == "auto" and world_size > 1 else 0
    for held in ranks.run(world_size, "tests.engine.footprints:between_backwards", spec):
        for memory in held:
            assert "gradients" not in memory
            assert memory["host_gradients"] == 4 * (length // world_size + unreduced)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_step_sends_each_gradient_and_each_parameter_once(
    ranks: RankPool, stage: int, world_size: int
) -> None:
    length = flat_length(world_size)
    for _, traffic in measure(ranks, world_size, zero_stage=stage):
        assert traffic["reduce_scatter"] == (1, 4 * length)
        assert traffic["all_gather"] == (1, 4 * length // world_size)
        assert traffic["all_reduce"][0] == 1
