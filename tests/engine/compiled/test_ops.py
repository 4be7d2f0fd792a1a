"""The operator behaves as declared, and never drops a gradient silently."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from zbench.engine.compiled.ops import reduce_gradient, set_current


class Receiver:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[tuple[int, list[float]]] = []

    def receive(self, position: int, grad: Tensor) -> None:
        self.received.append((position, grad.tolist()))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    current = Receiver()
    set_current(current)
    yield current
    set_current(None)


def test_delivers_to_the_current_receiver(receiver: Receiver) -> None:
    reduce_gradient(torch.tensor([1.0, 2.0]), 3)
    assert receiver.received == [(3, [1.0, 2.0])]


def test_obeys_its_schema_and_has_a_fake_kernel(receiver: Receiver) -> None:
    torch.library.opcheck(reduce_gradient, (torch.ones(4), 0), test_utils=("test_schema", "test_faketensor"))


def test_raises_where_nobody_takes_gradients() -> None:
    with pytest.raises(RuntimeError, match=r"engine\.backward\(loss\)"):
        reduce_gradient(torch.ones(2), 0)
