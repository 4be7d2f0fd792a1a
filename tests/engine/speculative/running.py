"""Engines for tests of the schedule itself."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import Engine, build_engine
from zbench.engine.speculative.schedule import Speculative
from zbench.spec.engine import EngineSpec


def threads() -> set[str]:
    """Return the kernel's threads of this process."""
    return set(os.listdir("/proc/self/task"))


def threads_left(before: set[str], patience: float = 120.0) -> set[str]:
    """Return those that are more than `before`; a thread that was joined may take a moment to be gone."""
    deadline = time.monotonic() + patience
    while (rest := threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return rest


class Layers(nn.Module):
    """`count` square layers; `between(x, k)` is called before layer k and may watch backward pass it."""

    def __init__(self, count: int = 4, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.between: dict[int, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            x = torch.tanh(layer(self.between[k](x) if k in self.between else x))
        return x


def layers(seed: int = 0) -> Layers:
    """Return a seeded model."""
    torch.manual_seed(seed)
    return Layers()


def loss(model: nn.Module, step: int = 0, factor: float = 1.0) -> Tensor:
    """Return a loss that depends on `step`."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step), requires_grad=True)
    x = x.to(next(model.parameters()))
    return model(x).float().square().mean() * factor


@contextmanager
def engine(model: nn.Module, **changes: Any) -> Iterator[Engine]:
    """Yield a speculative engine with a bucket a layer, and close it."""
    values = {
        "zero_stage": 1,
        "offload_optimizer": "cpu",
        "offload_schedule": "speculative",
        "gradient_clipping": 1e6,
        "reduce_bucket_size": 4096,
        **changes,
    }
    built = build_engine(model, EngineSpec.model_validate(values))
    try:
        yield built
    finally:
        built.close()


def schedule_of(built: Engine) -> Speculative:
    """Return the engine's schedule."""
    assert isinstance(built.schedule, Speculative)
    return built.schedule


def bits(built: Engine) -> dict[str, Tensor]:
    """Return the state, and what the model computes with."""
    parameters = {f"model.{n}": p.detach().clone() for n, p in built.model.named_parameters()}
    return {**built.state_dict(), **parameters}


@contextmanager
def after_a_step(**changes: Any) -> Iterator[tuple[Layers, Engine, dict[str, Tensor]]]:
    """Yield a model, its speculative engine after one step, and the bits that the step left."""
    model = layers()
    with engine(model, **changes) as built:
        built.backward(loss(model))
        assert not built.step().skipped
        yield model, built, bits(built)


def pinned_threads(group: dist.ProcessGroup) -> list[int]:
    """Return how many threads an engine started that may not run on all processors of this process.

    The process leaves all processors but one to the optimizer, as a test of placement needs.
    """
    assert torch.get_num_threads() == 1
    before = threads()
    spec = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
    built = build_engine(layers(), EngineSpec.model_validate(spec | {"optimizer_threads": 1}), group)
    started = [int(thread) for thread in threads() - before]
    allowed = len(os.sched_getaffinity(0))
    places = [len(os.sched_getaffinity(k)) for k in started if Path(f"/proc/self/task/{k}").exists()]
    built.close()
    return [count for count in places if count < allowed]
