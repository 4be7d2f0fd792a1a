"""The training step that torch's data-parallel wrappers share: accumulate, clip, one fused Adam step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from zbench.engine.assembly import settings
from zbench.engine.assembly.discovery import make_groups
from zbench.engine.assembly.stages import reduces_at_boundary
from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec

_MOMENTS = ("exp_avg", "max_exp_avg")
_TORCHS = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")


@dataclass(frozen=True, slots=True)
class TorchAdam:
    """torch's optimizer class, and the parameter groups to make it of."""

    kind: type[torch.optim.Optimizer]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, model: nn.Module, spec: EngineSpec) -> "TorchAdam":
        """Read the spec's optimizer and groups; freezes the parameters that a group says are frozen.

        UsageError for a pattern that matches no parameter.
        """
        kind = torch.optim.AdamW if spec.optimizer.name == "adamw" else torch.optim.Adam
        groups = make_groups(model, settings.hyperparameters(spec), settings.overrides(spec))
        return cls(kind, [{key: group[key] for key in _TORCHS} for group in groups if group["params"]])

    def make(self) -> torch.optim.Optimizer:
        """Return the whole optimizer, its update in torch's fused kernel."""
        return self.kind(self.groups, fused=True)  # type: ignore[call-arg]


class TorchEngine:
    """A TrainingEngine of a torch wrapper and a torch optimizer.

    module: what is called in place of the model. named: the model's parameters as the optimizer sees them.
    set_reducing: told before each forward whether its backward reduces.
    """

    def __init__(
        self,
        module: nn.Module,
        named: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        spec: EngineSpec,
        *,
        set_reducing: Callable[[bool], None],
    ) -> None:
        self.module, self._named, self._optimizer = module, dict(named), optimizer
        self._clipping, self._set_reducing = spec.gradient_clipping, set_reducing
        self._counting = settings.accumulation(spec)
        self._reduces_always = not reduces_at_boundary(spec) or spec.accumulation_mode != "micro_steps"
        self._announce_next()

    def _announce_next(self) -> None:
        """Say whether the next backward reduces, as far as that is known before its forward."""
        is_last = self._counting.count == self._counting.divisor - 1
        self._set_reducing(self._reduces_always or is_last)

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        """Add up gradients, averaged over ranks where this backward reduces, and over counted micro-batches.

        UsageError where no backward may follow.
        """
        self._counting.next(last)
        (loss / self._counting.divisor).backward()  # type: ignore[no-untyped-call]
        self._counting.done()
        self._announce_next()

    def step(self) -> StepInfo:
        """Clip, update, and forget the gradients; UsageError if they are not complete."""
        self._counting.check_step()
        self._counting.reset()
        norm = None
        if self._clipping:
            trained = [p for p in self._named.values() if p.requires_grad]
            norm = float(_whole(nn.utils.clip_grad_norm_(trained, self._clipping)))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._announce_next()
        return StepInfo(norm, clipped=norm is not None and norm > self._clipping)

    def full_parameters(self) -> dict[str, Tensor]:
        """Return name -> the whole parameter in float32, on every rank, as copies."""
        return {name: _whole(p.detach()).float().clone() for name, p in self._named.items()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> the whole exp_avg of every parameter that has one, on every rank."""
        states = self._optimizer.state
        return {n: _whole(states[p]["exp_avg"]).float() for n, p in self._named.items() if states.get(p)}

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's parameters and moments (`TrainingEngine.optimizer_parts`)."""
        states = self._optimizer_states()
        trained = {name: p for name, p in self._named.items() if p.requires_grad}
        return {f"{name}@": part_of(p, states.get(p) or {}) for name, p in trained.items()}

    def memory_by_category(self) -> dict[str, int]:
        """Return the bytes that this rank holds: gradients as they are during a step, in the parameters'
        sizes.
        """
        named = self._named.values()
        states = self._optimizer_states().values()
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return {
            "parameters": _bytes(list(named)),
            "gradients": _bytes([p for p in named if p.requires_grad]),
            "moments": _bytes(moments),
        }

    def close(self) -> None:
        """Nothing outlives the wrapper."""

    def _optimizer_states(self) -> Mapping[Tensor, dict[str, Any]]:
        return self._optimizer.state


def part_of(master: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's part of a master weight and of torch's Adam state, flat: `max_exp_avg_sq` is torch's
    `max_exp_avg_sqs`.
    """
    moments = {kind.removesuffix("s"): value for kind, value in state.items() if kind.startswith(_MOMENTS)}
    both = {"param": master.detach(), **moments}
    return {k: (v.to_local() if isinstance(v, DTensor) else v).reshape(-1) for k, v in both.items()}


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)
