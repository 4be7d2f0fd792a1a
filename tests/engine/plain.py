"""The reference: plain PyTorch in one process that plays every rank in turn; no code of the engine.

`zbench.verify.plain_training` is the reference of a user's trials. This one is independent of it on purpose:
it shares neither the chunk sums of the norm nor the reading of a specification with zbench, and its optimizer
is torch's own, whose groups a test changes between steps. The engine has the bits of both.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from zbench.testing.adam import bits

Batch = tuple[Tensor, ...]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Trajectory:
    """What a run leaves behind."""

    parameters: dict[str, Tensor]
    moments: dict[str, Tensor] = field(default_factory=dict)
    norms: list[float | None] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)


def assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor], context: str = "") -> None:
    """Both have the same names, dtypes and bits, NaN included."""
    assert a.keys() == b.keys(), f"{context}: {sorted(a.keys() ^ b.keys())}"
    differing = [k for k in b if a[k].dtype != b[k].dtype or not torch.equal(bits(a[k]), bits(b[k]))]
    assert not differing, f"{context}: {differing[:5]}"


def padded(values: Tensor) -> Tensor:
    """Return a flat float32 copy, padded with zeros to a multiple of 256."""
    flat = torch.zeros(-(-values.numel() // 256) * 256)
    flat[: values.numel()] = values.detach().reshape(-1).float()
    return flat


def chunk_sums(flat: Tensor) -> Tensor:
    """Return square sums of 256-element chunks of a padded float32 tensor."""
    squares = flat.double().view(-1, 32, 8) ** 2
    lanes = torch.zeros(squares.shape[0], 8, dtype=torch.float64)
    for i in range(32):
        lanes += squares[:, i]
    a = lanes.unbind(1)
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))


@dataclass(frozen=True)
class Options:
    """In which order and which dtypes gradients are added up, and how they are scaled and clipped."""

    max_norm: float = 0.0
    divisor: int = 1
    each_backward: bool = False
    dtype: str = "float32"
    grad_accum_dtype: str = "float32"
    communication_dtype: str | None = None
    initial_loss_scale: float = 65536.0
    loss_scale_window: int = 1000
    group_size: int | None = None


def added(values: Sequence[Tensor]) -> Tensor:
    """Return the sum, added in this order."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


class PlainTrainer:
    """Trains `model` as `world_size` ranks with plain data parallelism would, summing in a stated order."""

    def __init__(
        self,
        model: nn.Module,
        *,
        world_size: int,
        optimizer: Mapping[str, Any],
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        plan: Options | None = None,
    ) -> None:
        groups = groups or {}
        self.plan = plan = plan or Options()
        self.model, self.world_size, self.kept = model, world_size, DTYPES[plan.grad_accum_dtype]
        self.sent = DTYPES[plan.communication_dtype] if plan.communication_dtype else None
        self.scales = plan.dtype == "float16"
        self.loss_scale = plan.initial_loss_scale if self.scales else 1.0
        self._good = 0
        self.names = [n for n, p in model.named_parameters()]
        self.masters = {n: nn.Parameter(padded(p)) for n, p in model.named_parameters() if p.numel()}
        self.trained = [n for n in self.masters if model.get_parameter(n).requires_grad]
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dtype == torch.float32:
                tensor.data = tensor.data.to(DTYPES[plan.dtype])
        options = dict(optimizer)
        kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[options.pop("name", "adamw")]
        options.setdefault("weight_decay", 0.01)
        grouped: dict[str | None, list[nn.Parameter]] = {None: [], **{k: [] for k in groups}}
        for n, master in self.masters.items():
            grouped[next((k for k in groups if fnmatchcase(n, k)), None)].append(master)
        self.torch_groups: list[dict[str, Any]] = [{"params": grouped[None]}]
        self.torch_groups += [{**changes, "params": grouped[k]} for k, changes in groups.items()]
        self.optimizer = kind([g for g in self.torch_groups if g["params"]], fused=True, **options)
        self.norms: list[float | None] = []
        self.skipped: list[bool] = []

    def gradients(
        self, loss: Callable[[nn.Module, Batch], Tensor], batch: Batch, scale: float
    ) -> dict[str, Tensor]:
        """Return one rank's gradients of one micro-batch; parameters without one are absent."""
        for p in self.model.parameters():
            p.grad = None
        value = loss(self.model, batch)
        (value * scale if scale != 1.0 else value).backward()
        return {n: p.grad.cpu().clone() for n, p in self.model.named_parameters() if p.grad is not None}

    def step(self, loss: Callable[[nn.Module, Batch], Tensor], batches: list[list[Batch]]) -> None:
        """Take one step on batches[micro][rank], or skip it where float16 overflows."""
        loss_scale = self.loss_scale
        grads = [[self.gradients(loss, b, loss_scale) for b in of_micro] for of_micro in batches]
        present = {n for of_micro in grads for g in of_micro for n in g}
        sums = {n: self._sum(n, grads) for n in self.names if n in present}
        flats = {n: padded(total) for n, total in sums.items() if n in self.masters}
        squares = [chunk_sums(flats.get(n, torch.zeros_like(self.masters[n]))) for n in self.trained]
        divisor = self.world_size * self.plan.divisor * loss_scale
        norm = math.sqrt(math.fsum(torch.cat(squares).tolist())) * (1.0 / divisor) if squares else 0.0
        self.norms.append(norm)
        self.skipped.append(self.scales and not math.isfinite(norm))
        self._adapt()
        if self.skipped[-1]:
            return
        clip = min(1.0, self.plan.max_norm / (norm + 1e-6)) if self.plan.max_norm else 1.0
        scale = torch.tensor(clip / divisor, dtype=torch.float64).float()
        for n, master in self.masters.items():
            master.grad = flats[n] * scale if n in flats else None
        self.optimizer.step()
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                if n in flats:
                    p.copy_(self.masters[n][: p.numel()].view(p.shape))

    def _adapt(self) -> None:
        self._good = 0 if self.skipped[-1] else self._good + 1
        if self.skipped[-1]:
            self.loss_scale = max(self.loss_scale / 2, 1.0) if self.scales else 1.0
        elif self.scales and self._good == self.plan.loss_scale_window:
            self.loss_scale = self.loss_scale * 2
            self._good = 0

    def _sum(self, name: str, grads: list[list[dict[str, Tensor]]]) -> Tensor:
        shape = self.model.get_parameter(name).shape
        several = len(grads) > 1

        def sent(gradient: Tensor) -> Tensor:
            return gradient.to(self.sent).float() if self.sent and self.world_size > 1 else gradient.float()

        def over_ranks(parts: list[Tensor | None]) -> Tensor:
            values = [torch.zeros(shape) if part is None else sent(part) for part in parts]
            size = self.plan.group_size or len(values)
            return added([added(values[k : k + size]) for k in range(0, len(values), size)])

        if self.plan.each_backward and several and self.world_size > 1:
            total = torch.zeros(shape, dtype=self.kept)
            for k, of_micro in enumerate(grads):
                value = over_ranks([g.get(name) for g in of_micro])
                total = value.to(self.kept) if k == 0 else (total.float() + value).to(self.kept)
            return total
        of_rank: list[Tensor | None] = []
        for rank in range(self.world_size):
            total = None
            for value in (of_micro[rank][name] for of_micro in grads if name in of_micro[rank]):
                total = value if total is None else total.float() + value.float()
                total = total.to(self.kept) if several else total
            of_rank.append(total)
        return over_ranks(of_rank)

    def trajectory(self) -> Trajectory:
        """Return the state now."""
        shapes = {n: p.shape for n, p in self.model.named_parameters()}
        state = self.optimizer.state
        return Trajectory(
            {n: self._value(n, s) for n, s in shapes.items()},
            {
                n: state[m]["exp_avg"][: shapes[n].numel()].view(shapes[n]).clone()
                for n, m in self.masters.items()
                if m in state
            },
            self.norms,
            self.skipped,
        )

    def _value(self, name: str, shape: torch.Size) -> Tensor:
        parameter = self.model.get_parameter(name)
        trained = parameter.requires_grad or self.masters.get(name) in self.optimizer.state
        if name not in self.masters or not trained:
            return parameter.detach().float().cpu().clone()
        return self.masters[name].detach()[: shape.numel()].view(shape).clone()
