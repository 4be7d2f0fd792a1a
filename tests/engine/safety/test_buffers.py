"""`buffer_dtype: float32` keeps buffers that `dtype` would round; a module that refuses the mix is named."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.safety.plainly import build
from zbench.errors import UsageError

BFLOAT16 = {"dtype": "bfloat16"}


class Counting(nn.Module):
    """Normalizes by running statistics, kept to a precision that bfloat16 has not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(13, 24)
        self.norm = nn.BatchNorm1d(24, affine=False)
        self.register_buffer("scale", torch.tensor(1 / 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)) * self.scale.to(x.dtype)


def batch(number: int) -> Tensor:
    return torch.randn(5, 13, generator=torch.Generator().manual_seed(number)).bfloat16()


def test_float32_buffers_have_the_bits_of_a_plain_mixed_model(row: dict[str, Any]) -> None:
    engine = build(Counting(), row | BFLOAT16, buffer_dtype="float32")
    plain = Counting()
    for p in plain.parameters():
        p.data = p.data.bfloat16()
    for number in range(3):
        assert torch.equal(engine.model(batch(number)), plain(batch(number)))
    for name, buffer in plain.named_buffers():
        assert torch.equal(engine.model.get_buffer(name), buffer), name
        assert buffer.dtype == (torch.int64 if "batches" in name else torch.float32)
    state = engine.state_dict()
    engine.backward(engine.model(batch(0)).square().mean())
    engine.step()
    engine.load_state_dict(state)
    assert torch.equal(engine.model.norm.running_var, plain.norm.running_var)  # type: ignore[union-attr]
    engine.close()


def test_a_module_that_refuses_the_mix_is_named_before_anything_has_changed() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(UsageError, match=r"buffer_dtype: '1' \(BatchNorm1d\) refuses"):
        build(net, BFLOAT16, buffer_dtype="float32")
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    engine = build(net, BFLOAT16)
    assert engine.model.get_buffer("1.running_var").dtype == torch.bfloat16, "without the key"
    engine.close()
