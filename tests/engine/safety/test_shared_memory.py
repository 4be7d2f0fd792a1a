"""A tensor that sees a parameter's memory is refused by name when the engine is built, or stays as it is."""

import array
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
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


def by(tensor: Tensor, net: Net) -> None:
    """Have a parameter of 20 x 13 begin with the memory of `tensor`."""
    net.left = net.again = nn.Parameter(tensor.view(-1)[:260].view(20, 13))
    net.all = []


def a_numpy_array(net: Net) -> object:
    values = np.full((20, 13), 0.05, np.float32)
    by(torch.from_numpy(values), net)
    return values


def a_larger_numpy_array_in_a_dict(net: Net) -> object:
    values = {"of": {"all": np.full((3, 20, 13), 0.05, np.float32)}}
    by(torch.as_tensor(values["of"]["all"][1]), net)
    return values


def a_numpy_view_of_the_parameter(net: Net) -> object:
    by(torch.ones(260), net)
    return net.left.detach().numpy()


def a_bytearray(net: Net) -> object:
    values = bytearray(2000)
    by(torch.frombuffer(values, dtype=torch.float32), net)
    return values


def an_array_of_a_closure(net: Net) -> object:
    values = array.array("f", [0.05] * 260)
    by(torch.frombuffer(values, dtype=torch.float32), net)
    return lambda: values


def mapped_pages(net: Net) -> object:
    values = mmap.mmap(-1, 4096)
    by(torch.frombuffer(values, dtype=torch.float32), net)
    return values


def a_tensor(net: Net) -> object:
    values = torch.ones(260)
    by(values, net)
    return values


def the_data_of_a_parameter(net: Net) -> object:
    return [net.rows[1].data]


def other_processes(net: Net) -> object:
    return net.last.share_memory()


def a_file(net: Net, folder: Any) -> object:
    path = folder / "values"
    path.write_bytes(bytes(1040))
    by(torch.from_file(str(path), shared=True, size=260), net)
    return path


OUTSIDE: dict[Callable[..., object], str] = {
    a_numpy_array: "'left' alone, but a numpy.ndarray",
    a_larger_numpy_array_in_a_dict: "'left' alone, but a numpy.ndarray",
    a_numpy_view_of_the_parameter: "'left' alone, but a",
    a_bytearray: "'left' alone, but a bytearray",
    an_array_of_a_closure: "'left' alone, but a array.array",
    mapped_pages: "'left' alone, but a mmap.mmap",
    a_tensor: r"'left' alone, but a tensor of shape \[260\]",
    the_data_of_a_parameter: r"'rows.1' alone, but a tensor of shape \[1, 20\]",
    other_processes: "'last.* alone, but other processes",
    a_file: "'left' alone, but other processes",
}


@pytest.mark.parametrize("share", OUTSIDE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("row", [{"zero_stage": 0}, {"zero_stage": 3}], ids=["0", "3"])
def test_memory_that_something_outside_can_write_is_refused_by_name(
    row: dict[str, Any], share: Callable[..., object], tmp_path: Any
) -> None:
    net = Net()
    kept = share(net, tmp_path) if share is a_file else share(net)
    with pytest.raises(UsageError, match=rf"expected memory for {OUTSIDE[share]}.*p\.data\.clone\(\)"):
        build(net, row)
    for p in (net.left, *net.rows, *net.last.parameters()):
        p.data = p.data.clone()
    build(net, row).close()
    assert kept is not None


def test_memory_that_nothing_else_can_write_is_accepted(row: dict[str, Any], tmp_path: Any) -> None:
    net, file = Net(), tmp_path / "net.pt"
    torch.save(net.state_dict(), file)
    net.load_state_dict(torch.load(file), assign=True)
    net.again = net.left
    net.rows[0].data = torch.from_numpy(np.ones((1, 20), np.float32))
    engine, plain = build(net, row), Plain(Net())
    plain.model.rows[0].data = torch.ones(1, 20)
    assert_same(engine.full_parameters(), plain.values())
    engine.close()
