"""Views that skip FakeTensorMode's Python are the ones that it returns."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from zbench.estimate.simulate import SimulatedLedger

OPERATORS = {
    "slice": lambda x: x[3:17:2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "view": lambda x: x.view(2, -1),
    "detach": lambda x: x.detach(),
    "transposed": lambda x: x.t().transpose(0, 1),
    "expanded": lambda x: x[:, :1].expand(20, 9),
    "unsqueezed": lambda x: x.unsqueeze(1),
    "copied": lambda x: x[:4].copy_(x[4:8].to(torch.bfloat16)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_view_is_the_fake_modes(name: str) -> None:
    def seen(x: Tensor) -> tuple[object, ...]:
        out = OPERATORS[name](x)
        assert isinstance(out, FakeTensor)
        shared = out.untyped_storage()._cdata == x.untyped_storage()._cdata
        return out.shape, out.stride(), out.storage_offset(), out.dtype, out.device, shared, x._version

    with FakeTensorMode():
        expected = seen(torch.zeros(20, 6))
    ledger = SimulatedLedger()
    with FakeTensorMode(), ledger.watching():
        assert seen(torch.zeros(20, 6)) == expected


def test_a_copy_that_does_not_fit_is_still_refused() -> None:
    with FakeTensorMode(), SimulatedLedger().watching(), pytest.raises(RuntimeError):
        torch.zeros(3).copy_(torch.zeros(4))


def test_whole_numbers_are_still_followed_through_views() -> None:
    with FakeTensorMode(), SimulatedLedger().watching():
        assert int(torch.arange(10)[3:5].sum()) == 7
