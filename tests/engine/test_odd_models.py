"""Unusual models and what users change or get wrong while training leave the bits of plain PyTorch."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from tests.engine import models
from tests.engine.lattice import EVERY_ROW, SIZES, check, row_id
from zbench.engine import build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

each_row = pytest.mark.parametrize("row", EVERY_ROW, ids=row_id)


@each_row
def test_what_fails_or_is_refused_or_looked_at_leaves_no_trace(ranks: RankPool, row: dict[str, Any]) -> None:
    everything = "backward,interrupt,forward,evaluate,read,misuse"
    counted, unknown = {"gradient_accumulation_steps": 2}, {"accumulation_mode": "unmanaged", "backwards": 2}
    for model, mode in (("mlp", counted), ("odd-together", unknown)):
        check(ranks, model, 2, row | SIZES | mode | {"gradient_clipping": 0.1}, disturb=everything)


@each_row
def test_schedules_of_every_hyperparameter_are_honoured(ranks: RankPool, row: dict[str, Any]) -> None:
    groups = {"*bias": {"weight_decay": 0.0}, "layers.0*": {"betas": [0.8, 0.9]}}
    check(ranks, "mlp", 2, row | SIZES | {"param_groups": groups}, change="schedule")


@each_row
def test_parameters_may_be_frozen_and_thawed(ranks: RankPool, row: dict[str, Any]) -> None:
    check(ranks, "odd-together", 2, row | SIZES | {"gradient_clipping": 0.1}, change="thaw")


@each_row
@pytest.mark.parametrize("model", ["checkpointed", "mixed", "outside", "wandering"])
def test_unusual_models(ranks: RankPool, model: str, row: dict[str, Any]) -> None:
    steps = 4 if model == "wandering" else 3  # it goes another way in the first step, and again in the last
    check(ranks, model, 2, row | SIZES | {"gradient_clipping": 0.1}, steps=steps)
    if row["zero_stage"] == 3:
        check(ranks, model, 2, row | {"gradient_accumulation_steps": 2, "param_persistence_threshold": 0})


@pytest.mark.filterwarnings("error")
def test_torchs_schedulers_drive_the_groups() -> None:
    built = build_engine(models.make("mlp"), EngineSpec())
    plain = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    ours, theirs = (OneCycleLR(o, max_lr=0.1, total_steps=9) for o in (built.optimizer, plain))
    for step in range(3):
        built.backward(models.loss(built.model, models.batch("mlp", step, 0, 0)))
        built.step()
        plain.step()
        ours.step()
        theirs.step()
        for key in ("lr", "betas"):
            assert built.param_groups[0][key] == plain.param_groups[0][key]
    built.close()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_with_gaps_in_its_memory_begins_with_the_values_of_rank_0(
    ranks: RankPool, stage: int
) -> None:
    """A backend sends memory as it lies: it would leave out elements, and write where none are."""
    base = torch.arange(24.0).view(4, 6)
    for rank, values in enumerate(ranks.run(2, "tests.engine.cases:scattered", stage)):
        assert torch.equal(values["sliced"], base[:, :3])
        assert torch.equal(values["frozen"], base[:, 3:5])
        assert torch.equal(values["repeated"], torch.ones(500, 3))
        assert torch.equal(values["beside"], base[:, 5] + 100 * rank)


def test_a_model_that_a_closed_stage_3_engine_let_go_of_is_refused() -> None:
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
