"""Every size and switch changes what is sent, held or overlapped as documented, and no bit of the result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import Instruments, build_engine
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

LAYERS, WIDTH = 6, 64
CHUNK, RANKS = 256, 2
ALIGNMENT = CHUNK * RANKS
UNIT = WIDTH * WIDTH
"""Elements of a layer: a weight that needs no padding."""
LENGTH = LAYERS * UNIT
EVERYTHING = 10**8
Event = tuple[str, int]
"""What happened, and: reduce, reduced, gather: elements; gradient, forward: the layer."""


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


class NotedLayer(nn.Linear):
    """A layer that notes when its forward begins, with its weight gathered."""

    enter: Callable[[], None] = staticmethod(lambda: None)

    def forward(self, x: Tensor) -> Tensor:
        self.enter()
        return super().forward(x)


def observe_step(group: dist.ProcessGroup, spec: dict[str, Any]) -> Seen:
    """Return what the third step did. `held`: bytes of parameters at the forward of every layer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(NotedLayer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    seen = Seen()
    for k, layer in enumerate(model):
        layer.weight.register_post_accumulate_grad_hook(lambda _, k=k: seen.events.append(("gradient", k)))
    instruments = Instruments(
        wrap_collectives=lambda inner: NotedCollectives(inner, seen),
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


def ceil(a: int, b: int) -> int:
    return -(-a // b)


@pytest.fixture
def observe(ranks: RankPool) -> Any:
    """Return what a step does with some setting, on rank 0, after all ranks have proved to do the same."""

    def run(stage: int, **setting: Any) -> Seen:
        spec = {"zero_stage": stage, "param_persistence_threshold": 0, **setting}
        first, second = ranks.run(RANKS, f"{__name__}:observe_step", spec)
        assert first.events == second.events
        expected = usual(ranks, stage)
        for seen in (first, second):
            assert all(torch.equal(value, expected[name]) for name, value in seen.parameters.items())
        return first

    return run


@cache
def usual(ranks: RankPool, stage: int) -> dict[str, torch.Tensor]:
    """Return the parameters that a stage leaves with every knob as it is by default."""
    return ranks.run(RANKS, f"{__name__}:observe_step", {"zero_stage": stage})[0].parameters


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_reduce_bucket_size_bounds_the_bytes_sent_and_held(observe: Any, stage: int) -> None:
    held = []
    for size in (4 * ALIGNMENT, 16 * ALIGNMENT, EVERYTHING):
        seen = observe(stage, reduce_bucket_size=size, dtype="float32")
        assert len(seen.of("reduce")) == ceil(LENGTH, size)
        assert sum(seen.of("reduce")) == LENGTH, "as much is sent, however it is cut"
        assert max(seen.of("reduce")) <= size
        held.append(seen.memory.get("buckets", 0))  # none where a bucket is part of one gradient
        assert held[-1] <= 4 * 4 * size, "two in flight and one that is filled, and what they receive"
    if stage == 0:
        assert held == [0, 0, 0], "all is sent from where it lands"
    else:
        assert held[0] < held[1] <= held[2], "three small buckets are no more than a bucket of everything"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_allgather_bucket_size_bounds_the_elements_gathered_at_once(observe: Any, stage: int) -> None:
    for size in (ALIGNMENT, 4 * ALIGNMENT, EVERYTHING):
        gathered = observe(stage, allgather_bucket_size=size, prefetch_bucket_size=1).of("gather")
        assert max(gathered) <= size
        if stage == 3:  # a layer is gathered for forward and for backward; the first needs no input gradient
            assert len(gathered) == (2 * LAYERS - 1) * ceil(UNIT, size)
            assert sum(gathered) == (2 * LAYERS - 1) * UNIT
        else:
            assert len(gathered) == ceil(LENGTH, size)
            assert sum(gathered) == LENGTH


@pytest.mark.parametrize("ahead", [0, 1, 2, LAYERS])
def test_prefetch_bucket_size_bounds_the_elements_gathered_ahead(observe: Any, ahead: int) -> None:
    seen = observe(3, prefetch_bucket_size=max(ahead * UNIT, 1))
    gathers = 0
    gathered = [0]
    share = LENGTH // RANKS
    for k in range(LAYERS):
        there = max(gathered[-1], k + 1)
        low = there - (k + 1) <= ahead / 4  # gathers come in bursts
        gathered.append(min(k + 1 + ahead, LAYERS) if low else there)
    for kind, k in seen.events:
        gathers += kind == "gather"
        if kind == "forward":
            assert gathers == gathered[k + 1]
    for k, held in enumerate(seen.held):
        coming = gathered[k + 1] - k
        rest = k - max(LAYERS - ahead, 1)
        assert held == 4 * (share + UNIT * (coming + max(rest, 0))), "what backward needs at once is kept"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_overlap_comm_lets_reductions_and_backward_go_on_together(observe: Any, stage: int) -> None:
    for overlap in (False, True):
        seen = observe(stage, overlap_comm=overlap, reduce_bucket_size=UNIT)
        order = [kind for kind, _ in seen.events if kind in ("reduce", "reduced", "gradient")]
        between = [a == "reduce" and b == "gradient" for a, b in pairwise(order)]
        assert any(between) == overlap, "gradients are computed while a reduction is under way"
        flying = [order[: k + 1].count("reduce") - order[: k + 1].count("reduced") for k in range(len(order))]
        assert max(flying) == 1, "there is memory for one"
