"""Models that fall into graphs in every way, and ranks that train them with compiled and eager ZeRO-1."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.engine.cases import when_backward_passes
from tests.engine.models import placed
from zbench.engine import Instruments, StepInfo, build_engine
from zbench.engine.compiled.compile import CompiledGradients
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.spec.engine import EngineSpec

WIDTH, VOCABULARY = 8, 12


class Block(nn.Module):
    """A residual layer; `broken` ends the captured graph inside it."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(self.norm(x)).relu()
        if self.broken:
            torch._dynamo.graph_break()
        return x + y


class Tied(nn.Module):
    """Embedding and head share one weight; with `broken`, they and the layers are three graphs."""

    def __init__(self, *, broken: bool = False, depth: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.broken = broken

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.broken:
            torch._dynamo.graph_break()
        for block in self.blocks:
            x = block(x)
        if self.broken:
            torch._dynamo.graph_break()
        return (x @ self.embed.weight.t()).logsumexp(-1).mean()


class Layers(nn.Module):
    """Broken inside every layer: one graph serves all layers, the embedding and the head stay uncompiled."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(broken=True) for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).logsumexp(-1).mean()


class WithoutReduction(nn.Module):
    """Three graphs of which the one at `place` (0, 1, 2) needs backward but has no parameter."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        layers = [self.first, self.second]
        layers.insert(self.place, nn.functional.gelu)
        x = layers[0](x)
        torch._dynamo.graph_break()
        x = layers[1](x)
        torch._dynamo.graph_break()
        return layers[2](x).square().mean()


class Checkpointed(nn.Module):
    """Recomputes its layers in backward."""

    def __init__(self, *, broken: bool = False, reentrant: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(broken=broken) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


class PartlyTrained(nn.Module):
    """Frozen and unused parameters, one without a gradient, and one that only uncompiled code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Parameter(torch.ones(5))
        self.read_in_vain = nn.Parameter(torch.ones(WIDTH))
        self.outside = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trained(self.frozen(x) + self.read_in_vain.detach())
        return scaled_outside(x, self.outside).square().mean()


@torch._dynamo.disable
def scaled_outside(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply in plain Python: dynamo captures none of this."""
    return x * scale


class Crossed(nn.Module):
    """Two branches whose gradients are ready in opposite order on even and odd ranks; with `faulty` backward
    fails between them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, swapped: bool, faulty: bool = False) -> Tensor:
        inner, outer = (self.second, self.first) if swapped else (self.first, self.second)
        x = inner(x)
        if faulty:
            x = blow(x)
        torch._dynamo.graph_break()
        return outer(x).square().mean()


class Wide(nn.Module):
    """Weights so large that each fills a bucket of its own, and is sent from where backward left it."""

    def __init__(self, depth: int = 3, width: int = 384) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x).relu()
        return x.square().mean()


@torch._dynamo.disable
def blow(x: Tensor) -> Tensor:
    """Fail in backward, outside of compiled code."""
    return when_backward_passes(_fail)(x)


def _fail() -> None:
    raise ZeroDivisionError("a fault in backward")


def tokens(rank: int = 0, length: int = 6, batch: int = 2) -> Tensor:
    """Return [batch, length] token numbers, different on every rank."""
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(rank))


def vectors(rank: int = 0, length: int = 6) -> Tensor:
    """Return [length, WIDTH] inputs, different on every rank."""
    return torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(rank))


Batch = Callable[[int, int], tuple[Any, ...]]
"""(rank, step) -> the model's arguments."""


def _tokens(length: int = 6, batch: int = 2, growth: int = 0) -> Batch:
    """Return token numbers, `growth` more at each step, and one more on odd ranks then."""
    return lambda rank, step: (
        tokens(rank + 10 * step, length + growth * step + (rank % 2 if growth else 0), batch),
    )


def _vectors(growth: int = 0) -> Batch:
    return lambda rank, step: (vectors(rank + 10 * step, 6 + growth * step),)


def _crossed(rank: int, step: int) -> tuple[Any, ...]:
    return (vectors(rank + 10 * step), rank % 2 == 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "one_graph": (Tied, _tokens()),
    "two_graphs_share_a_parameter": (lambda: Tied(broken=True), _tokens()),
    "one_graph_for_many_layers": (Layers, _tokens()),
    "no_reduction_first": (lambda: WithoutReduction(0), _vectors()),
    "no_reduction_last": (lambda: WithoutReduction(2), _vectors()),
    "partly_trained": (PartlyTrained, _vectors()),
    "checkpointed": (Checkpointed, _vectors()),
    "checkpoints_not_captured": (lambda: Checkpointed(broken=True), _vectors()),
    "new_sequence_lengths": (lambda: Tied(broken=True), _tokens(growth=3)),
    "ready_in_another_order_on_each_rank": (Crossed, _crossed),
}
OTHERS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "new_lengths_of_one_graph": (lambda: Wide(1, 16), _vectors(growth=3)),
    "wide": (Wide, _vectors()),
    "fragile": (Crossed, lambda rank, step: (vectors(rank + 10 * step), False)),
}
BASE: dict[str, Any] = {"zero_stage": 1, "reduce_bucket_size": 600, "gradient_clipping": 0.5}


def make(name: str) -> tuple[nn.Module, Batch]:
    """Return a seeded model and its batches, on the device that the name ends in; compiled code of earlier
    cases is forgotten.
    """
    torch._dynamo.reset()
    torch.manual_seed(3)
    name, device = placed(name)
    build, batch = {**MODELS, **OTHERS}[name]

    def moved(rank: int, step: int) -> tuple[Any, ...]:
        return tuple(x.to(device) if isinstance(x, Tensor) else x for x in batch(rank, step))

    return build().to(device), moved


@contextmanager
def quick_inductor() -> Iterator[None]:
    """Have inductor not try what the processor can do (a dozen programs, 12 s where no cache is, and
    some are loaded in every process), and start no helpers, which import torch.
    """
    from torch._inductor import config  # seconds, which ranks without inductor save

    untried = mock.patch("torch.cpu._is_avx512_bf16_supported", return_value=False, create=True)
    with config.patch({"cpp.vec_isa_ok": True, "compile_threads": 1}), untried:
        yield


@dataclass
class Recorder:
    """Collectives that write down the lengths of the buckets that they reduce."""

    inner: Collectives
    sizes: list[int] = field(default_factory=list)
    rank: int = field(init=False)
    world_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank, self.world_size = self.inner.rank, self.inner.world_size

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self.sizes.append(send.numel())
        return self.inner.reduce_scatter(send, out, tag)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def take(self) -> list[int]:
        """Return what was reduced since the last call."""
        taken, self.sizes = self.sizes, []
        return taken


@dataclass
class Trained:
    """What a run ended with, what each of its steps said, and what each of its backwards reduced: all of it,
    and (of a compiled run) what had been launched when the last gradient had arrived, and in which order the
    last step's gradients did.
    """

    parameters: dict[str, Tensor]
    infos: list[StepInfo]
    launches: list[list[int]]
    under_backward: list[list[int]]
    ready: list[int]


def train_recorded(
    group: dist.ProcessGroup,
    name: str,
    spec: dict[str, Any],
    *,
    steps: int = 3,
    backwards: int = 1,
    frozen_in: int | None = None,
) -> Trained:
    """Train a model; in step `frozen_in` the first of its trained parameters is frozen."""
    model, batch = make(name)
    parsed = EngineSpec.model_validate({**BASE, **spec})
    recorders: list[Recorder] = []

    def wrap(inner: Collectives) -> Collectives:
        recorders.append(Recorder(inner))
        return recorders[-1]

    engine = build_engine(model, parsed, group, instruments=Instruments(wrap_collectives=wrap))
    (recorder,) = recorders
    rank = dist.get_rank(group)
    marks = parsed.accumulation_mode == "multi_backward"
    first = next(p for p in model.parameters() if p.requires_grad)
    # host memory beside a GPU is locked, and stays
    released = {"buckets", "gradients"} | ({"host_gradients"} if first.device.type == "cpu" else set())
    infos = []
    launches = []
    under_backward = []
    ready = list[int]()
    accept, finish = CompiledGradients.accept, CompiledGradients.finish

    def note(gradients: CompiledGradients, index: int, gradient: Tensor) -> None:
        ready.append(index)
        accept(gradients, index, gradient)

    def look(gradients: CompiledGradients) -> None:
        under_backward.append(list(recorder.sizes))
        finish(gradients)

    with mock.patch.multiple(CompiledGradients, accept=note, finish=look):
        for step in range(steps):
            ready.clear()
            if frozen_in is not None:
                first.requires_grad_(step != frozen_in)
            for micro in range(backwards):
                loss = model(*batch(rank + 100 * micro, step)).float()
                engine.backward(loss, last=micro == backwards - 1 if marks else None)
                launches.append(recorder.take())
            infos.append(engine.step())
            held = engine.memory_by_category()
            assert parsed.compile == "off" or not released & set(held), held
    parameters = engine.full_parameters()
    assert all(p.grad is None for p in model.parameters())
    engine.close()
    return Trained(parameters, infos, launches, under_backward, ready)


def train_both(group: dist.ProcessGroup, name: str, spec: dict[str, Any], **how: Any) -> Trained:
    """Assert that compiled ZeRO-1 takes eager ZeRO-1's steps, launches its buckets in its order at its
    backwards (but for one rank on a card), and ends with its bits; return the compiled run.
    """
    eager = train_recorded(group, name, spec, **how)
    compiled = train_recorded(group, name, {**spec, "compile": "aot_eager"}, **how)
    assert str(compiled.infos) == str(eager.infos)  # a norm may be NaN
    alone = group.size() == 1 and "@" in name  # eager ZeRO-1 there adds offloaded sums in every backward
    for launch, other in zip(compiled.launches, eager.launches, strict=True):
        assert launch == other or (alone and not launch)
    for key, value in eager.parameters.items():
        assert torch.equal(compiled.parameters[key], value), key
    return compiled
