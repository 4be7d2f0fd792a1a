"""What one step does, in order, for `test_knobs`; runs inside the pool's ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import Instruments, build_engine
from zbench.engine.adam import AdamBackend, AdamTask
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.spec.engine import EngineSpec

LAYERS, WIDTH = 6, 64
Event = tuple[str, int]
"""What happened, and: reduce, reduced, gather: elements; adam: elements; gradient, forward: the layer."""


@dataclass
class Seen:
    """One step of a rank: its events, the bytes held after it, and the parameters it left."""

    events: list[Event] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def of(self, kind: str) -> list[int]:
        """Return the numbers of all events of one kind."""
        return [number for name, number in self.events if name == kind]


class Noted:
    """A collective whose end is an event too."""

    def __init__(self, work: Work, seen: Seen, event: Event) -> None:
        self._work, self._seen, self._event = work, seen, event

    def wait(self) -> None:
        self._work.wait()
        self._seen.events.append(self._event)

    def is_completed(self) -> bool:
        return self._work.is_completed()


class NotedCollectives:
    """Notes when reductions and gathers are launched, and when reductions have been waited for."""

    def __init__(self, inner: Collectives, seen: Seen) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self._seen.events.append(("reduce", send.numel()))
        return Noted(self._inner.reduce_scatter(send, out, tag), self._seen, ("reduced", send.numel()))

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        self._seen.events.append(("gather", flat.numel()))
        return self._inner.all_gather(flat, tag)


class NotedAdam:
    """Notes how many elements each call updates."""

    def __init__(self, inner: AdamBackend, seen: Seen) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update(self, tasks: Sequence[AdamTask], **options: Any) -> None:
        self._seen.events.append(("adam", sum(task.grad.numel() for task in tasks)))
        self._inner.update(tasks, **options)


class NotedLayer(nn.Linear):
    """A layer that notes when its forward begins, with its weight gathered."""

    enter: Callable[[], None] = staticmethod(lambda: None)

    def forward(self, x: Tensor) -> Tensor:
        self.enter()
        return super().forward(x)


def observe(group: dist.ProcessGroup, spec: dict[str, Any]) -> Seen:
    """Return what the third step did. `held`: bytes of parameters at the forward of every layer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(NotedLayer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    seen = Seen()
    for k, layer in enumerate(model):
        layer.weight.register_post_accumulate_grad_hook(lambda _, k=k: seen.events.append(("gradient", k)))
    instruments = Instruments(
        wrap_collectives=lambda inner: NotedCollectives(inner, seen),
        wrap_adam=lambda inner: NotedAdam(inner, seen),
    )
    engine = build_engine(model, EngineSpec.model_validate(spec), group, instruments=instruments)

    def enter(k: int) -> None:
        seen.events.append(("forward", k))
        seen.held.append(engine.memory_by_category().get("parameters", 0))

    for k, layer in enumerate(model):
        layer.enter = partial(enter, k)
    for step in range(3):
        seen.events.clear()
        seen.held.clear()
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step + dist.get_rank(group)))
        engine.backward(model(x).square().mean())
        engine.step()
    result = Seen(list(seen.events), list(seen.held), engine.memory_by_category(), engine.full_parameters())
    engine.close()
    return result
