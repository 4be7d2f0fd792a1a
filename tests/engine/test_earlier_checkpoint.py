"""Checkpoints of earlier versions can be loaded: `tests/fixtures/earlier` was written at revision 399f646."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from zbench.engine import build_engine, load
from zbench.spec.engine import EngineSpec

CHECKPOINT = Path(__file__).parents[1] / "fixtures" / "earlier" / "checkpoint"
SPEC = {"optimizer": {"amsgrad": True}, "param_groups": {"*bias": {"weight_decay": 0.0}}}
"""The checkpoint was saved after three steps at stage 2 with offload; its run took two more steps."""


@pytest.mark.parametrize("form", ["whole", "sharded"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_checkpoint_of_an_earlier_version_is_resumed(form: str, stage: int) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    engine = build_engine(model, EngineSpec.model_validate(SPEC | {"zero_stage": stage}))
    load(engine, CHECKPOINT / form)
    for number in (3, 4):
        batch = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        engine.backward(model(batch).square().mean())
        engine.step()
    expected = load_file(CHECKPOINT / "two_steps_later.safetensors")
    got = engine.full_parameters()
    assert got.keys() == expected.keys()
    for name, value in expected.items():  # a step moves by 1e-3; products may round otherwise on another CPU
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)
    engine.close()
