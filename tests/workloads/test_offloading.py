"""Activations in host memory: the same bits, each storage copied once, weights not at all."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec
from zbench.workloads.models import GPT
from zbench.workloads.offloading import Offload


class Sizes(TorchDispatchMode):
    """Notes the elements of each tensor that `empty` makes while it is `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.elements = list[int]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        if self.is_open and function is torch.ops.aten.empty.memory_format:
            self.elements.append(out.numel())
        return out

    @contextmanager
    def on_host(self) -> Iterator[None]:
        self.is_open = True
        yield
        self.is_open = False


def gradients(model: nn.Module, batch: tuple[Tensor, ...], sizes: Sizes | None = None) -> list[Tensor]:
    model.zero_grad()
    if sizes is None:
        model(*batch).backward()
    else:
        with sizes:
            with Offload(sizes.on_host).saving():
                loss = model(*batch)
            loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gradients_keep_their_bits_and_no_weight_is_copied() -> None:
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 67, "sequence_length": 16}
    model = GPT(**shape, tied_head=False, loss_chunks=1)
    batch = (torch.randint(67, (5, 16)), torch.randint(67, (5, 16)))
    plain = gradients(model, batch)
    sizes = Sizes()
    offloaded = gradients(model, batch, sizes)
    assert all(torch.equal(one, other) for one, other in zip(plain, offloaded, strict=True))
    assert 5 * 16 * 3 * 32 in sizes.elements, "the three heads' inputs are one storage"
    weights = {p.numel() for p in model.parameters()}
    assert not weights & {*sizes.elements}


class Noting(Offload):
    """Notes the elements of each tensor that it is asked to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = set[int]()

    def _pack(self, tensor):  # type: ignore[no-untyped-def]
        self.elements.add(tensor.numel())
        return super()._pack(tensor)


def test_gathered_weights_are_left_to_the_engine_at_stage_3() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 70), nn.Tanh(), nn.Linear(70, 32))
    engine = build_engine(model, EngineSpec(zero_stage=3, param_persistence_threshold=0))
    offload = Noting()
    with offload.saving():
        loss = model(torch.randn(5, 32)).square().mean()
    assert 5 * 70 in offload.elements
    assert 32 * 70 not in offload.elements, "kept, it would stay whole until backward"
    engine.backward(loss)
    engine.step()
    engine.close()


def test_a_storage_is_copied_once_whatever_views_are_saved() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    sizes = Sizes()
    with sizes:
        with Offload(sizes.on_host).saving():
            y = x * 1.0
            loss = (y * y).sum() + (y[1:].t() * y[1:].t()).sum()
        sizes.is_open = True
        loss.backward()
    assert sizes.elements == [4 * 5] * 2, "once to the host, and once back"
    expected = 2 * x.detach()
    expected[1:] *= 2
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
