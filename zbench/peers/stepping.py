"""The training step of torch's data-parallel wrappers: accumulate, clip, one fused Adam step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from zbench.engine.assembly import settings
from zbench.engine.assembly.discovery import make_groups
from zbench.engine.assembly.stages import reduces_at_boundary
from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec

_MOMENTS = ("exp_avg", "max_exp_avg")
_TORCHS = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")


@dataclass(frozen=True, slots=True)
class TorchAdam:
    """torch's optimizer class and its parameter groups."""

    kind: type[torch.optim.Optimizer]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, model: nn.Module, spec: EngineSpec) -> "TorchAdam":
        """Return the spec's optimizer and groups; freeze the parameters of frozen groups.

        UsageError for a pattern that matches no parameter.
        """
        kind = torch.optim.AdamW if spec.optimizer.name == "adamw" else torch.optim.Adam
        groups = make_groups(model, settings.hyperparameters(spec), settings.overrides(spec))
        return cls(kind, [{key: group[key] for key in _TORCHS} for group in groups if group["params"]])

    def make(self) -> torch.optim.Optimizer:
        """Return the optimizer, unsharded, with torch's fused kernel."""
        return self.kind(self.groups, fused=True)  # type: ignore[call-arg]


class TorchEngine:
    """A TrainingEngine of a torch wrapper and a torch optimizer.

    module: called instead of the model. named: name -> parameter, as the optimizer has it. set_reducing:
    called before each forward with whether its backward reduces gradients. prefix: `host_` where state is
    offloaded.
    """

    def __init__(
        self,
        module: nn.Module,
        named: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        spec: EngineSpec,
        *,
        set_reducing: Callable[[bool], None],
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self.module, self._named, self._optimizer = module, named, optimizer
        self._clipping, self._set_reducing = spec.gradient_clipping, set_reducing
        self._counting = settings.accumulation(spec)
        self._reduces_always = not reduces_at_boundary(spec) or spec.accumulation_mode != "micro_steps"
        self._announce_next()

    def _announce_next(self) -> None:
        """Call `set_reducing` for the next backward."""
        is_last = self._counting.count == self._counting.divisor - 1
        self._set_reducing(self._reduces_always or is_last)

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        """Accumulate gradients of loss / counted micro-batches; average them over ranks if this one reduces.

        UsageError if no backward is allowed now.
        """
        self._counting.next(last)
        (loss / self._counting.divisor).backward()  # type: ignore[no-untyped-call]
        self._counting.done()
        self._announce_next()

    def leave_out(self, backwards: int) -> None:
        """Count so many backwards of this step that are not run, where a step is simulated."""
        self._counting.count += backwards
        self._announce_next()

    def step(self) -> StepInfo:
        """Clip, update and release the gradients. UsageError if they are not complete."""
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

    def gradients(self) -> list[Tensor]:
        """Return this rank's gradients as they are now."""
        return [_local(p.grad) for p in self._named.values() if p.grad is not None]

    def full_parameters(self) -> dict[str, Tensor]:
        """Return name -> copy of the unsharded parameter in float32, on every rank."""
        return {name: _whole(p.detach()).float().clone() for name, p in self._named.items()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> unsharded float32 exp_avg of every parameter that has one, on every rank."""
        states = self._optimizer.state
        return {n: _whole(states[p]["exp_avg"]).float() for n, p in self._named.items() if states.get(p)}

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's parameters and moments (`TrainingEngine.optimizer_parts`)."""
        states = self._optimizer_states()
        return {
            f"{name}@{shard_start(p)}": part_of(p, states.get(p) or {}) for name, p in self._named.items()
        }

    def memory_by_category(self) -> dict[str, int]:
        """Return category -> bytes of this rank during a step; gradients have the sizes of the parameters."""
        named = self._named.values()
        states = self._optimizer_states().values()
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return {
            f"{self._prefix}parameters": _bytes(named),
            f"{self._prefix}gradients": _bytes([p for p in named if p.requires_grad]),
            f"{self._prefix}moments": _bytes(moments),
        }

    def close(self) -> None:
        """Do nothing: the wrapper holds no resources."""

    def _optimizer_states(self) -> Mapping[Tensor, dict[str, Any]]:
        return self._optimizer.state


def part_of(master: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's part of a master weight (`param`) and of its moments, each flat. `max_exp_avg_sqs`
    of torch is named `max_exp_avg_sq`.
    """
    moments = {kind.removesuffix("s"): value for kind, value in state.items() if kind.startswith(_MOMENTS)}
    both = {"param": master.detach(), **moments}
    return {k: _local(v).reshape(-1) for k, v in both.items()}


def shard_start(tensor: Tensor) -> int:
    """Return the place of this rank's first element in the flat tensor; FSDP2 shards the first dimension."""
    if not isinstance(tensor, DTensor):
        return 0
    offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
    return offset[0] * tensor.shape[1:].numel()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_local(t).nbytes for t in tensors)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
