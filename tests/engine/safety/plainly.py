"""One rank trained by plain PyTorch, the reference of a single-rank engine; and how both are compared."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.plain import assert_same, padded
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

STAGES = [
    {"zero_stage": 0},
    {"zero_stage": 1},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
    {"zero_stage": 3},
    {"zero_stage": 3, "overlap_comm": False},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
]
SMALL = {"param_persistence_threshold": 0, "reduce_bucket_size": 900, "allgather_bucket_size": 700}


Loss = Callable[..., Tensor]
"""(model, input) -> a scalar."""


class Net(nn.Module):
    """Layers and a norm; `batch` is its input, in any dtype."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first = nn.Linear(13, 24)
        self.norm = nn.LayerNorm(24)
        self.last = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.norm(self.first(x.to(self.last.weight.dtype)))))
        return output


def build(model: nn.Module, row: Mapping[str, Any], group: Any = None, **keys: Any) -> Engine:
    """Return an engine whose every parameter is sharded where the stage shards."""
    return build_engine(model, EngineSpec.model_validate({**SMALL, **row, **keys}), group)


class Plain:
    """A model trained by torch's fused AdamW on flat padded buffers: one rank, float32."""

    def __init__(self, model: nn.Module, lr: float = 1e-3) -> None:
        self.model = model
        self.masters = {n: nn.Parameter(padded(p)) for n, p in model.named_parameters()}
        self.optimizer = torch.optim.AdamW(self.masters.values(), lr=lr, weight_decay=0.01, fused=True)

    def step(self) -> None:
        """Update from the gradients that are there."""
        named = dict(self.model.named_parameters())
        for n, master in self.masters.items():
            gradient = named[n].grad
            master.data[: named[n].numel()] = named[n].detach().reshape(-1)  # edits count
            master.grad = None if gradient is None else padded(gradient)
            named[n].grad = None
        self.optimizer.step()
        with torch.no_grad():
            for n, p in named.items():
                if self.masters[n].grad is not None:
                    p.copy_(self.masters[n][: p.numel()].view(p.shape))

    def values(self) -> dict[str, Tensor]:
        """Return the parameters."""
        return {n: p.detach().clone() for n, p in self.model.named_parameters()}


def batch(number: int) -> Tensor:
    """Return the input of a step."""
    return torch.randn(5, 13, generator=torch.Generator().manual_seed(number))


def by_forward(net: nn.Module, x: Tensor) -> Tensor:
    """Return the mean square of the model's output."""
    output: Tensor = net(x)
    return output.square().mean()


def step(engine: Engine, plain: Plain, number: int, loss: Loss = by_forward) -> None:
    """Take the same step with both."""
    engine.backward(loss(engine.model, batch(number)))
    loss(plain.model, batch(number)).backward()
    engine.step()
    plain.step()


def same_steps(engine: Engine, plain: Plain, *numbers: int, loss: Loss = by_forward) -> None:
    """Take the same steps with both; then all parameters have the same bits."""
    for number in numbers:
        step(engine, plain, number, loss)
    assert_same(engine.full_parameters(), plain.values())
