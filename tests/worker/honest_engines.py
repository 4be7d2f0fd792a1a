"""An engine that is right but rounds in its own order: DDP's averaging and torch's unfused Adam, in plain
torch."""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec

LATE_SECONDS = 0.05
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class OtherOrder:
    """Averages with one all-reduce a parameter, in the order gloo likes, and divides each micro-batch's loss.

    Has no `first_moments`, as peers have none.
    """

    def __init__(self, model: nn.Module, spec: EngineSpec) -> None:
        self._model, self._spec = model, spec
        self._masters = {n: p.detach().clone() for n, p in model.named_parameters()}
        model.to(_DTYPES[spec.dtype])
        o = spec.optimizer
        self._adam = torch.optim.AdamW(
            list(self._masters.values()), o.lr, o.betas, o.eps, weight_decay=o.weight_decay, foreach=True
        )

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        (loss / self._spec.gradient_accumulation_steps).backward()

    def step(self) -> StepInfo:
        for name, parameter in self._model.named_parameters():
            assert parameter.grad is not None
            average = parameter.grad.float() / dist.get_world_size()
            dist.all_reduce(average)
            self._masters[name].grad = average
            parameter.grad = None
        norm = None
        if self._spec.gradient_clipping:
            norm = float(nn.utils.clip_grad_norm_(self._masters.values(), self._spec.gradient_clipping))
        self._adam.step()
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self._masters[name])
        return StepInfo(norm)

    def full_parameters(self) -> dict[str, Tensor]:
        return {name: master.clone() for name, master in self._masters.items()}

    def memory_by_category(self) -> dict[str, int]:
        return {"parameters": sum(p.nbytes for p in self._model.parameters())}

    def close(self) -> None:
        return


def other_order(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: object = None
) -> OtherOrder:
    return OtherOrder(model, spec)


class LastRankLate(OtherOrder):
    """Has nothing left to tell the others when its last rank sleeps."""

    def step(self) -> StepInfo:
        info = super().step()
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(LATE_SECONDS)
        return info


def last_rank_late(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: object = None
) -> LastRankLate:
    """Return the engine, built as the built-in one is."""
    return LastRankLate(model, spec)
