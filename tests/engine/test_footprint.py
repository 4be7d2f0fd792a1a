"""Bytes held and bytes sent by each stage equal their formulas."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zbench.engine import Instruments, build_engine
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

CHUNK = 256
WIDTHS = (100, 50, 30)
SIZES = (100 * 50, 50, 50 * 30, 30)


def footprint(group: dist.ProcessGroup, spec: dict[str, Any], backwards: int = 1) -> list[dict[str, Any]]:
    """Return bytes by category after each backward of two steps, and after the second; then what its
    collectives sent: (calls, bytes).
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:]))
    meter = TrafficMeter(PhaseClock())
    instruments = Instruments(wrap_collectives=meter.count)
    engine = build_engine(model, EngineSpec.model_validate(spec), group, instruments=instruments)
    held: list[dict[str, Any]] = []
    for _ in range(2):
        meter.take()
        for micro in range(backwards):
            marks = spec.get("accumulation_mode") == "multi_backward"
            x = torch.ones(4, WIDTHS[0], dtype=model[0].weight.dtype)
            engine.backward(model(x).square().mean(), last=micro == backwards - 1 if marks else None)
            held.append(engine.memory_by_category())
        engine.step()
    traffic = {kind: (seen.calls, seen.bytes) for kind, seen in meter.take().items()}
    held += [engine.memory_by_category(), traffic]
    engine.close()
    return held


def flat_length(world_size: int) -> int:
    """Elements of the flat layout: each parameter padded to a chunk, the whole to a chunk for every rank."""
    padded = sum(-(-size // CHUNK) * CHUNK for size in SIZES)
    return -(-padded // (world_size * CHUNK)) * world_size * CHUNK


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("stage", "offload"), [(0, "none"), (1, "none"), (2, "none"), (2, "cpu")])
def test_each_stage_holds_and_sends_what_its_formula_says(
    ranks: RankPool, stage: int, offload: str, world_size: int
) -> None:
    """Each gradient and each parameter is sent once, and offload moves the optimizer's share to the host."""
    length = flat_length(world_size)
    share = length if stage == 0 else length // world_size
    here, elsewhere = ("", "host_") if offload == "none" else ("host_", "")
    spec = {"zero_stage": stage, "offload_optimizer": offload}
    for *_, memory, traffic in ranks.run(world_size, f"{__name__}:footprint", spec):
        assert memory["parameters"] == 4 * length
        assert memory[f"{here}gradients"] == 4 * share
        assert memory[f"{here}moments"] == 8 * share
        assert not {f"{elsewhere}{kind}" for kind in ("moments", "master", "gradients")} & set(memory)
        masters = 0 if offload == "none" else 4 * share
        assert memory.get(f"{here}master", 0) == masters, "float32 parameters are their own master weights"
        if world_size > 1:
            assert traffic["reduce_scatter"] == (1, 4 * length)
            assert traffic["all_gather"] == (1, 4 * length // world_size)
            assert traffic["all_reduce"][0] == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stage_3_keeps_a_share_of_everything(ranks: RankPool, dtype: str) -> None:
    """And no second copy of the parameters: what is stored are the master weights."""
    world_size = 3
    spec = {"zero_stage": 3, "param_persistence_threshold": 0, "dtype": dtype}
    for *_, memory, _ in ranks.run(world_size, f"{__name__}:footprint", spec):
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
    for held in ranks.run(world_size, f"{__name__}:footprint", spec, 3):
        for memory in (*held[:2], *held[3:5]):  # after each backward but the last of a step
            assert "gradients" not in memory
            assert memory["host_gradients"] == 4 * (length // world_size + unreduced)
