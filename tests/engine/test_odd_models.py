"""Unusual models and what users change or get wrong while training leave the bits of plain PyTorch."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.engine import models
from tests.engine.lattice import EVERY_ROW, SIZES, check, rows_of
from zbench.engine import build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

CLIPPED = SIZES | {"gradient_clipping": 0.1}
MODELS = ("checkpointed", "mixed", "outside", "wandering")


@rows_of(lambda k: k in (0, 1, 4, 5, 8, 11))
def test_failures_refusals_and_reads_leave_no_trace(ranks: RankPool, k: int) -> None:
    everything = "backward,interrupt,forward,evaluate,read,misuse"
    counted, unknown = {"gradient_accumulation_steps": 2}, {"accumulation_mode": "unmanaged", "backwards": 2}
    for model, mode in (("mlp", counted), ("odd-together", unknown)):
        check(ranks, model, 2, EVERY_ROW[k] | mode | CLIPPED, disturb=everything)


@rows_of(lambda k: k in (0, 2, 5, 7, 9))
def test_changes_between_steps_are_honoured(ranks: RankPool, k: int) -> None:
    groups = {"*bias": {"weight_decay": 0.0}, "layers.0*": {"betas": [0.8, 0.9]}}
    check(ranks, "mlp", 2, EVERY_ROW[k] | SIZES | {"param_groups": groups}, change="schedule")
    check(ranks, "odd-together", 2, EVERY_ROW[k] | CLIPPED, change="thaw")


@rows_of(lambda k: k < 8)
@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.check) for turn in range(1, len(MODELS)))]
)
def test_unusual_models(ranks: RankPool, k: int, turn: int) -> None:
    row, model = EVERY_ROW[k], MODELS[(k + turn) % len(MODELS)]
    steps = 4 if model == "wandering" else 3  # it goes another way in the first step, and again in the last
    check(ranks, model, 2, row | CLIPPED, steps=steps)
    if row["zero_stage"] == 3:
        check(ranks, model, 2, row | {"gradient_accumulation_steps": 2, "param_persistence_threshold": 0})


class Scattered(nn.Module):
    """Parameters that are slices of something larger, and a buffer that repeats one value."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        base = torch.arange(24.0).view(4, 6) + 100 * rank
        self.sliced = nn.Parameter(base[:, :3])
        self.beside = base[:, 5]
        self.frozen = nn.Parameter(base[:, 3:5], requires_grad=False)
        self.register_buffer("repeated", torch.full((1, 1), 1.0 + rank).expand(500, 3))


def scattered(group: dist.ProcessGroup, stage: int) -> dict[str, Any]:
    """Return what a model with gaps in memory, other values on each rank, begins with."""
    model = Scattered(dist.get_rank(group))
    engine = build_engine(model, EngineSpec(zero_stage=stage), group)
    values: dict[str, Any] = {**engine.full_parameters(), "repeated": model.repeated.clone()}
    engine.close()
    return values | {"beside": model.beside}


@pytest.mark.parametrize("stage", [0, 3])
def test_a_model_with_gaps_in_memory_begins_with_rank_0(ranks: RankPool, stage: int) -> None:
    """A backend sends memory as it lies: it would leave out elements, and write where none are."""
    base = torch.arange(24.0).view(4, 6)
    for rank, values in enumerate(ranks.run(2, f"{__name__}:scattered", stage)):
        assert torch.equal(values["sliced"], base[:, :3])
        assert torch.equal(values["frozen"], base[:, 3:5])
        assert torch.equal(values["repeated"], torch.ones(500, 3))
        assert torch.equal(values["beside"], base[:, 5] + 100 * rank)


def test_a_model_of_a_closed_stage_3_engine_is_refused() -> None:
    model = models.make("mlp")
    engine = build_engine(model, EngineSpec(zero_stage=3, param_persistence_threshold=0))
    values = engine.full_parameters()
    engine.close()
    with pytest.raises(UsageError, match=r"memory for every element of 'layers.0.weight'.*p.data ="):
        build_engine(model, EngineSpec())
    for name, parameter in model.named_parameters():
        parameter.data = values[name].clone()
    engine = build_engine(model, EngineSpec())
    for name, value in engine.full_parameters().items():
        assert torch.equal(value, values[name])
    engine.close()
