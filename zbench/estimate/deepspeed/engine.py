"""What DeepSpeed's engine has at every stage, by rules: micro-batches, the step, Adam."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.assembly import settings
from zbench.engine.protocols import StepInfo
from zbench.estimate.deepspeed.keys import Keys
from zbench.estimate.ledger import MOMENTS, PARAMETERS, TEMPORARIES, AllocationLedger
from zbench.peers.stepping import TorchAdam
from zbench.spec.engine import EngineSpec


class RuledEngine:
    """DeepSpeed's engine: what every stage has. is_apart: host memory is, and Adam is the card's."""

    def __init__(
        self, model: nn.Module, spec: EngineSpec, keys: Keys, ledger: AllocationLedger, *, is_apart: bool
    ) -> None:
        self.module, self.keys, self.is_apart = model, keys, is_apart
        self._ledger = ledger
        self._counting = settings.accumulation(spec)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.is_boundary, self.micro = True, 0
        self._moments: dict[int, list[Tensor]] = {}
        if keys.dtype != torch.float32:
            model.to(keys.dtype)  # engine.py, `_configure_distributed_model`
        adam = TorchAdam.of(model, spec)
        self._decays_gradients = adam.kind is torch.optim.Adam
        self._options = adam.groups
        self.groups = [[p for p in group["params"] if p.requires_grad] for group in adam.groups]
        self.prepare()

    def prepare(self) -> None:
        """Allocate the states."""

    def take(self, parameter: nn.Parameter) -> None:
        """Take one complete gradient, within backward."""

    def finish_backward(self) -> None:
        """Do what follows a backward."""

    def update(self) -> None:
        """Update the parameters, and release the gradients."""

    def new(
        self, size: int, dtype: torch.dtype, category: str = TEMPORARIES, *, on_host: bool = False
    ) -> Tensor:
        """Return memory of `size` elements."""
        with self._ledger.on_host() if on_host and self.is_apart else nullcontext():
            tensor = torch.empty(size, dtype=dtype)
        self._ledger.call([tensor], category)
        return tensor

    def call(self, tensor: Tensor, category: str) -> Tensor:
        """Return a tensor whose memory has this category."""
        self._ledger.call([tensor], category)
        return tensor

    def listen(self, take: Callable[[nn.Parameter], None]) -> None:
        """Call `take` with each parameter whose gradient is complete."""
        for parameter in (p for group in self.groups for p in group):
            parameter.register_post_accumulate_grad_hook(take)

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        """Run the backward as DeepSpeed's engine does."""
        self.is_boundary = self._counting.next(last).last is not False
        (loss / self._counting.divisor).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.finish_backward()
        self.micro += 1
        self._counting.done()

    def step(self) -> StepInfo:
        """Run the step as DeepSpeed's engine does."""
        self._counting.check_step()
        with torch.no_grad():
            self.update()
            for parameter in self.module.parameters():
                parameter.grad = None
        self.micro = 0
        self._counting.reset()
        return StepInfo(None, clipped=False)

    def adam(self, number: int, group: int, master: Tensor, gradient: Tensor) -> None:
        """Update `master`; its moments (`number`) exist from the first time on.

        torch/optim/adam.py: `_single_tensor_adam` has two temporaries, `_multi_tensor_adam` of a card one.
        ops/adam/cpu_adam.py has none.
        """
        options, host = self._options[group], self.keys.offloads
        if number not in self._moments:
            kinds = range(3 if options["amsgrad"] else 2)
            self._moments[number] = [
                self.new(master.numel(), master.dtype, MOMENTS, on_host=host).view_as(master) for _ in kinds
            ]
        first, *_, second = self._moments[number]
        if self._decays_gradients and options["weight_decay"] and not self.keys.updates_in_place:
            gradient = gradient.add(master)
        first.lerp_(gradient, 0.1)
        second.addcmul_(gradient, gradient)
        if self.keys.updates_in_place:
            master.addcmul_(first, second)
            return
        root = second.sqrt()
        root = root.add_(1.0) if self.is_apart and not host else root.div(1.0)
        master.addcdiv_(first, root)

    def full_parameters(self) -> dict[str, Tensor]:
        """Return nothing: there are no data."""
        return {}

    def close(self) -> None:
        """Release nothing."""

    def memory_by_category(self) -> dict[str, int]:
        """Return the bytes of the parameters."""
        return {PARAMETERS: sum(p.nbytes for p in self.module.parameters())}
