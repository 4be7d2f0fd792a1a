"""What the ranks of a test run: training with compiled and with eager ZeRO-1."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.compiled import models
from tests.engine.models import placed
from zbench.engine import Instruments, StepInfo, build_engine
from zbench.engine.compiled.compile import CompiledGradients
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.spec.engine import EngineSpec

Batch = Callable[[int, int], tuple[Any, ...]]
"""(rank, step) -> the model's arguments."""


def _tokens(length: int = 6, batch: int = 2, growth: int = 0) -> Batch:
    """Return token numbers, `growth` more at each step, and one more on odd ranks then."""
    return lambda rank, step: (
        models.tokens(rank + 10 * step, length + growth * step + (rank % 2 if growth else 0), batch),
    )


def _vectors(growth: int = 0) -> Batch:
    return lambda rank, step: (models.vectors(rank + 10 * step, 6 + growth * step),)


def _crossed(rank: int, step: int) -> tuple[Any, ...]:
    return (models.vectors(rank + 10 * step), rank % 2 == 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "one_graph": (models.Tied, _tokens()),
    "two_graphs_share_a_parameter": (lambda: models.Tied(broken=True), _tokens()),
    "one_graph_for_many_layers": (models.Layers, _tokens()),
    "no_reduction_first": (lambda: models.WithoutReduction(0), _vectors()),
    "no_reduction_last": (lambda: models.WithoutReduction(2), _vectors()),
    "partly_trained": (models.PartlyTrained, _vectors()),
    "checkpointed": (models.Checkpointed, _vectors()),
    "checkpoints_not_captured": (lambda: models.Checkpointed(broken=True), _vectors()),
    "new_sequence_lengths": (lambda: models.Tied(broken=True), _tokens(growth=3)),
    "ready_in_another_order_on_each_rank": (models.Crossed, _crossed),
}
OTHERS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "new_lengths_of_one_graph": (lambda: models.Wide(1, 16), _vectors(growth=3)),
    "wide": (models.Wide, _vectors()),
    "fragile": (models.Crossed, lambda rank, step: (models.vectors(rank + 10 * step), False)),
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
