"""A tensor that sees a parameter's memory is refused by name when the engine is built, or stays as it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.plain import assert_same
from tests.engine.safety.plainly import Plain, build, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError


class Net(nn.Module):
    """Has parts of one storage that do not overlap, tied weights, and a view that a hook computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        both = torch.randn(20, 26) / 5
        self.left, self.right = nn.Parameter(both[:, :13]), nn.Parameter(both[:, 13:])
        self.rows = nn.ParameterList(torch.randn(3, 20).chunk(3))
        self.again = self.left
        self.all = [self.left, {"rows": self.rows[0]}]
        self.last = nn.utils.spectral_norm(nn.Linear(20, 20))
        self.lstm = nn.LSTM(20, 4)
        self.register_buffer("scale", torch.ones(2))
        self.steps = self.scale[1:]

    def forward(self, x: Tensor) -> Tensor:
        h = x @ (self.left + 0.5 * self.right).t() + sum(self.rows)
        return self.lstm(self.last(h) * self.scale[0])[0] + (x @ self.again.t()).mean()


def test_views_that_do_not_overlap_are_kept(engine: Engine, plain: Plain) -> None:
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 0, 1, 2)


def a_buffer(net: Net) -> None:
    net.register_buffer("wt", net.left.detach().t())


def an_attribute(net: Net) -> None:
    net.last.wt = net.left.t()


def in_a_list(net: Net) -> None:
    net.kept = {"all": [net.left.data]}


def another_parameter(net: Net) -> None:
    net.last.other = nn.Parameter(net.left.data[3])


NAMED = {
    a_buffer: "wt",
    an_attribute: "last.wt",
    in_a_list: "kept",
    another_parameter: "last.other",
}


@pytest.mark.parametrize(("share", "name"), NAMED.items(), ids=[f.__name__ for f in NAMED])
def test_a_tensor_that_shares_a_parameters_memory_is_refused_by_name(
    row: dict[str, Any], share: Callable[[Net], None], name: str
) -> None:
    net = Net()
    share(net)
    before = {n: (p.data_ptr(), p.detach().clone()) for n, p in net.named_parameters()}
    with pytest.raises(UsageError, match=rf"'(left|{name})'.*'(left|{name})' shares this memory.*clone\(\)"):
        build(net, row)
    for n, p in net.named_parameters():
        assert p.data_ptr() == before[n][0]
        assert torch.equal(p, before[n][1])
