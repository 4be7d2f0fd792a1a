"""Mixtures of experts whose routing differs between ranks, for `test_leaf_modules`; runs inside the ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.engine.plain import Options, PlainTrainer
from tests.engine.safety.plainly import SMALL
from tests.engine.steps.agreeing import connected, heard
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

WIDTH, EXPERTS = 24, 4


class Mixture(nn.Module):
    """Adds the experts of a route, weighted by a gate; one of them twice where it is named twice."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 40), nn.Tanh(), nn.Linear(40, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor, route: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        weights = self.gate(x).softmax(-1)
        out = x
        for k in route:
            out = out + weights[:, k : k + 1] * self.experts[k](x)
        return out, weights


class Routed(nn.Module):
    """Two mixtures with layers around them; the second mixture is called twice. `how`: see `forward`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.one = Mixture()
        self.between = nn.Linear(WIDTH, WIDTH)
        self.two = Mixture()
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, routes: tuple[tuple[int, ...], ...], how: str = "") -> Tensor:
        x, balance = torch.tanh(self.first(x)), x.new_zeros(())
        for mixture, route in zip((self.one, self.two), routes, strict=False):
            if how == "checkpointed":
                out, weights = checkpoint(mixture, x, route, use_reentrant=False)
            else:
                out, weights = mixture(x, route)
            balance = balance + weights.square().mean()
            x = torch.tanh(self.between(x + out))
        if how == "twice":
            x = x + self.two(x, routes[2])[0]
        return self.last(x).square().mean() + 0.1 * balance


Routes = tuple[tuple[int, ...], ...]
ROUTES: list[list[Routes]] = [  # [step][rank]
    [((0, 1), (2,), (0,)), ((1, 3), (), (0,)), ((2,), (1, 0), (0,))],
    [((), (0, 1, 2, 3), (1,)), ((2, 2), (3,), (1,)), ((), (), (1,))],
    [((3,), (3,), (2,)), ((3,), (3,), (2,)), ((0,), (1,), (2,))],
]


def batch(step: int, micro: int, rank: int, how: str) -> tuple[Any, ...]:
    seed = 100 * step + 10 * micro + rank
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(seed))
    return x, ROUTES[(step + micro) % 3][rank], how


def loss(net: nn.Module, data: tuple[Any, ...]) -> Tensor:
    result: Tensor = net(*data)
    return result


def _engine(group: dist.ProcessGroup, spec: dict[str, Any]) -> Engine:
    keys = {"zero_stage": 3, "leaf_modules": ["Mixture"], **SMALL, **spec}
    return build_engine(Routed(), EngineSpec.model_validate(keys), group)


def differing_from_plain(
    group: dist.ProcessGroup, way: str, spec: dict[str, Any], micros: int, how: str
) -> list[str]:
    """Take three steps; return the names whose parameters or moments differ from plain PyTorch's."""
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    plan = Options(divisor=micros, each_backward=True, max_norm=spec.get("gradient_clipping", 0.0))
    plain = PlainTrainer(Routed(), world_size=world, optimizer={"lr": 1e-3}, plan=plan)
    with connected(group, way, seconds=20.0) as mine:
        engine = _engine(mine, spec | {"gradient_accumulation_steps": micros})
        for step in range(3):
            for micro in range(micros):
                engine.backward(loss(engine.model, batch(step, micro, rank, how)))
                with torch.no_grad():
                    loss(engine.model, batch(step, micro, 0, ""))
            engine.step()
            plain.step(loss, [[batch(step, m, r, how) for r in range(world)] for m in range(micros)])
        values, moments = engine.full_parameters(), engine.first_moments()
        engine.close()
    expected = plain.trajectory()
    differ = [n for n, v in expected.parameters.items() if not torch.equal(values[n], v)]
    return differ + [f"exp_avg {n}" for n, v in expected.moments.items() if not torch.equal(moments[n], v)]


def without_the_key(group: dist.ProcessGroup) -> str:
    """Return what is heard where ranks use different experts and no leaf module is named."""
    with connected(group, "memory", seconds=5.0) as mine:
        engine = _engine(mine, {"leaf_modules": []})
        message = heard(lambda: engine.backward(loss(engine.model, batch(0, 0, dist.get_rank(group), ""))))
        engine.close()
        return message
