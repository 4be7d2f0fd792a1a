"""An engine and plain PyTorch beside it, for random sequences: the model, its losses and the comparison."""

import random
from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.plain import DTYPES, Options, PlainTrainer
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


LAYERS = ("first", "second", "sometimes", "last", "norm")


class Net(nn.Module):
    """LAYERS, of which a weight is tied and one is used at times. `dtype`: what it computes in."""

    def __init__(self, dtype: torch.dtype, *, grown: bool = False) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first, self.second = nn.Linear(13, 24), nn.Linear(24, 24)
        self.sometimes, self.last = nn.Linear(24, 24), nn.Linear(24, 7)
        self.norm = nn.LayerNorm(24)
        self.register_buffer("seen", torch.zeros(()))
        self.adapter: nn.Module = adapter() if grown else nn.Identity()
        self.dtype = dtype

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        h = self.norm(torch.tanh(self.first(x.to(self.dtype))))
        h = self.sometimes(h) if use else h
        return self.last(self.adapter(torch.tanh(self.second(h))) + functional.linear(h, self.second.weight))

    def energy(self, x: Tensor) -> Tensor:
        """Return another loss, not by way of forward."""
        return self.last(self.norm(torch.tanh(self.first(x.to(self.dtype))))).square().mean()


def adapter() -> nn.Module:
    """Return what the model may gain."""
    torch.manual_seed(12)
    return nn.Sequential(nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, 24))


def batch(number: int, rank: int) -> tuple[Tensor, ...]:
    return (torch.randn(5, 13, generator=torch.Generator().manual_seed(1000 * number + rank)),)


def usual(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0]).square().mean()


def without_one(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0], False).square().mean()


def penalized(net: Any, data: tuple[Tensor, ...]) -> Tensor:
    penalty = net.second.weight.square().sum() + net.last.bias.abs().sum()
    return net(data[0]).square().mean() + 0.1 * penalty


def by_method(net: Any, data: tuple[Tensor, ...]) -> Tensor:
    return net.energy(data[0]) + 0.01 * net.first.weight.square().sum()


def like_its_own_teacher(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    """Return a loss of which a part is computed in inference mode."""
    with torch.inference_mode():
        target = net(2 * data[0])
    return (net(data[0]) - target.clone()).square().mean()


LOSSES: tuple[Loss, ...] = (usual, without_one, penalized, by_method, like_its_own_teacher)


SIZES = {"reduce_bucket_size": 900, "allgather_bucket_size": 700, "accumulation_mode": "multi_backward"}


class Pair:
    """An engine and its plain twin, which plays every rank."""

    def __init__(self, group: dist.ProcessGroup, row: dict[str, Any], seed: int) -> None:
        self.group = group
        self.row = row
        self.draw = random.Random(seed)
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.dtype = DTYPES[row.get("dtype", "float32")]
        frozen = self.draw.sample(LAYERS, self.draw.choice((0, 0, 1, 2)))
        net = Net(self.dtype)
        for name in frozen:
            net.get_submodule(name).requires_grad_(False)
        self.grown = False
        self.engine = self.build(group, {n for n, p in net.named_parameters() if p.requires_grad})
        each = row["zero_stage"] >= 2
        dtype = row.get("dtype", "float32")
        plan = Options(each_backward=each, max_norm=row.get("gradient_clipping", 0.0), dtype=dtype)
        optimizer = {"lr": 1e-3, "weight_decay": 0.01}
        self.plain = PlainTrainer(net, world_size=self.world, optimizer=optimizer, plan=plan)
        self.forget_untrained()
        self.number = 0
        self.saved: list[tuple[dict[str, Any], PlainTrainer]] = []

    def build(self, group: dist.ProcessGroup | None, trained: Collection[str]) -> Engine:
        """Return another engine of the same row, on a new model, that trains parameters with these names."""
        groups = {"param_groups": {"adapter.*": {"weight_decay": 0.1}}} if self.grown else {}
        spec = EngineSpec.model_validate({**SIZES, **self.row, **groups})
        net = Net(self.dtype, grown=self.grown)
        for name, p in net.named_parameters():
            p.requires_grad_(name in trained)
        return build_engine(net, spec, group)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.plain.model.named_parameters()]

    @property
    def trains(self) -> bool:
        return any(p.requires_grad for p in self.plain.model.parameters())

    def step_plain(self, loss: Loss, batches: list[list[tuple[torch.Tensor, ...]]]) -> None:
        """Take the plain step of what the engine trains."""
        self.plain.names = self.plain.trained = sorted(self.trained())
        self.plain.step(loss, batches)

    @property
    def nets(self) -> tuple[Any, Any]:
        return self.engine.model, self.plain.model

    def compare(self, after: str) -> None:
        """Every parameter and first moment has the same bits."""
        values, moments = self.engine.full_parameters(), self.engine.first_moments()
        expected = self.plain.trajectory()
        trained = self.trained()
        for name, p in self.plain.model.named_parameters():
            value = self.plain.masters[name][: p.numel()].view(p.shape) if name in trained else p.float()
            assert torch.equal(values[name], value), f"{name} after {after}"
        for name, moment in expected.moments.items():
            assert torch.equal(moments[name], moment), f"exp_avg of {name} after {after}"

    def trained(self) -> set[str]:
        """Return the names of what the engine trains."""
        return {t.name for t in self.engine.checked_state().param_infos}

    def sync_plain(self) -> None:
        """Have the masters follow edits; what was not changed keeps its precision."""
        for name, p in self.plain.model.named_parameters():
            master = self.plain.masters[name].data[: p.numel()]
            values = p.detach().reshape(-1)
            master.copy_(torch.where(master.to(p.dtype) == values, master, values.float()))

    def return_to(self, plain: PlainTrainer) -> None:
        """Continue from there, with what is trained now."""
        before = self.plain
        self.plain = deepcopy(plain)
        self.set_flags(self.plain.model, before.model)
        self.forget_untrained()

    def set_flags(self, net: nn.Module, source: nn.Module | None = None) -> None:
        """Train in `net` what is trained in `source`, or in the plain model."""
        for p, q in zip(net.parameters(), (source or self.plain.model).parameters(), strict=True):
            p.requires_grad_(q.requires_grad)

    def forget_untrained(self) -> None:
        """What the engine has never trained has neither moments nor a float32 master."""
        trained = self.trained()
        for name, p in self.plain.model.named_parameters():
            if name not in trained:
                self.plain.optimizer.state.pop(self.plain.masters[name], None)
                self.plain.masters[name].data[: p.numel()] = p.detach().reshape(-1)


def alone(rank: int) -> dist.ProcessGroup:
    """Return a process group of this rank."""
    group = dist.new_group([rank], use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group
