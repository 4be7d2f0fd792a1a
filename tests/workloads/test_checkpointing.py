"""Checkpointing of any model: the same bits, more products only where all is computed again."""

import collections
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.verify.runs import GPT, task
from zbench.errors import UsageError
from zbench.workloads.checkpointing import checkpointed


class Residual(nn.Module):
    """A block with a parameter of its own, and keyword arguments."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor, *, more: float) -> Tensor:
        return x + self.last(nn.functional.gelu(self.first(x * self.scale), approximate="tanh")) * more


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, more=2.0)
        return x.square().mean()


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def trained(mode: Any, classes: tuple[str, ...] = ()) -> tuple[list[Tensor], collections.Counter[str]]:
    """Return the gradients of one backward, and the operators of forward and backward."""
    torch.manual_seed(0)
    model = checkpointed(Stacked(), mode, classes)
    x = torch.randn(4, 16)
    with Operators() as operators:
        model(x).backward()
    assert "blocks.0.first.weight" in dict(model.named_parameters()), "names stay"
    assert type(model.blocks[0]).__name__ == "Residual"
    return [p.grad for p in model.parameters() if p.grad is not None], operators.counts


@pytest.mark.parametrize("classes", [(), ("Residual",)])
def test_gradients_keep_their_bits_and_selective_repeats_no_product(classes: tuple[str, ...]) -> None:
    (plain, once), (whole, twice), (selective, cheap) = (
        trained(mode, classes) for mode in (False, True, "selective")
    )
    for gradients in (whole, selective):
        assert all(torch.equal(*pair) for pair in zip(plain, gradients, strict=True))
    product, activation = "aten.addmm.default", "aten.gelu.default"
    assert twice[product] > once[product] == cheap[product]
    assert twice[activation] == cheap[activation] == 2 * once[activation]


def test_a_model_without_blocks_is_refused_with_the_key() -> None:
    for classes, message in (((), "has no list of blocks"), (("Layer",), "has no module of Layer")):
        with pytest.raises(UsageError, match=f"{message}; name the classes"):
            checkpointed(nn.Linear(2, 2), True, classes)


def test_the_loss_of_chunks_is_that_of_the_whole() -> None:
    losses = []
    for chunks, calls in ((1, 1), (5, 10)):
        workload = task({**GPT, "loss_chunks": chunks}).workload
        model = workload.make_model()
        count: list[int] = []
        model.head.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        loss = workload.loss(model, workload.batch(0, 0, 0))
        loss.backward()
        assert len(count) == calls
        losses.append((loss.detach(), model.head.weight.grad))
    torch.testing.assert_close(*losses)
