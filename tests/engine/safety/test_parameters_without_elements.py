"""A parameter without elements has the engine's dtype, as every other has: operations on both need one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.safety.plainly import STAGES, build, row_id


class EmptyBesideFull(nn.Module):
    """Concatenates a full weight and an empty one, as the head of MobileBERT can."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.full, self.empty = nn.Linear(16, 24, bias=False), nn.Linear(24, 0, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.cat([self.full.weight.t(), self.empty.weight], dim=0)).square().mean()


@pytest.mark.parametrize("row", STAGES, ids=row_id)
def test_an_empty_parameter_is_cast_with_the_others(row: dict[str, Any]) -> None:
    model = EmptyBesideFull()
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    engine = build(model, row, dtype="bfloat16")
    try:
        loss = model(x)
        assert loss.dtype == torch.bfloat16
        engine.backward(loss)
        engine.step()
        assert engine.full_parameters()["full.weight"].isfinite().all()
    finally:
        engine.close()
