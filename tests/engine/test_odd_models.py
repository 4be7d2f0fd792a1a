"""Unusual models and what users change or get wrong while training leave the bits of plain PyTorch."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from tests.engine import models
from tests.engine.lattice import ROWS, SIZES, SPECULATIVE_ROWS, check, row_id
from tests.engine.ranks import RankPool
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec

each_row = pytest.mark.parametrize("row", [*ROWS, *SPECULATIVE_ROWS], ids=row_id)


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
def test_parameters_may_be_frozen_and_unfrozen_later(ranks: RankPool, row: dict[str, Any]) -> None:
    for change in ("unfreeze", "thaw"):
        check(ranks, "odd-together", 2, row | SIZES | {"gradient_clipping": 0.1}, change=change)


@each_row
def test_what_a_pattern_froze_is_trained_by_its_group_once_unfrozen(
    ranks: RankPool, row: dict[str, Any]
) -> None:
    groups = {"frozen*": {"frozen": True, "lr": 3e-3}}
    check(ranks, "odd-together", 2, row | SIZES | {"param_groups": groups}, change="unfreeze")


@each_row
@pytest.mark.parametrize("model", ["checkpointed", "mixed", "outside", "wandering"])
def test_unusual_models(ranks: RankPool, model: str, row: dict[str, Any]) -> None:
    check(ranks, model, 2, row | SIZES | {"gradient_clipping": 0.1}, steps=4)
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
