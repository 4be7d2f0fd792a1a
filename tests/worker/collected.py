"""Faults that others have collected, on engines of torch and the built-in one: `collected:FAULT_of_ENGINE`.

TTrace (arXiv 2506.09280) looks for faults of Megatron-LM beside one device, TrainCheck (OSDI 2025) for broken
invariants of training. Each fault here imitates one of theirs, in a few lines; `nothing` is the healthy twin.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec

PATHS = {
    "ddp": "zbench.peers.ddp",
    "fsdp2": "zbench.peers.fsdp2",
    "builtin": "zbench.engine",
    "deepspeed": "zbench.peers.deepspeed",
}


class Imitation:
    """An engine with a fault. fault: changes it before it is built, after that, or around a step."""

    def __init__(
        self, fault: str, of: str, model: nn.Module, spec: EngineSpec, group: object = None, **options: Any
    ) -> None:
        self.model, self.count, self.backwards = model, 0, 0
        self.at_backward: Callable[[Tensor], Tensor] = lambda loss: loss
        self.before_step: Callable[[], None] = lambda: None
        self.after_step: Callable[[], None] = lambda: None
        self.group: dist.ProcessGroup | None = None
        change = BEFORE.get(fault)
        if change is not None:
            change(self)
        spec = spec.model_copy(update={"engine": of})
        build = importlib.import_module(PATHS[of]).build_engine
        self.inner = build(model, spec, self.group, **options)
        AFTER.get(fault, lambda engine: None)(self)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        self.backwards += 1
        self.inner.backward(self.at_backward(loss), last)

    def step(self) -> StepInfo:
        self.before_step()
        info: StepInfo = self.inner.step()
        self.count += 1
        self.after_step()
        return info

    def each(self, part: str) -> dict[str, nn.Parameter]:
        """Return the parameters of DDP whose names have a part."""
        return {name: p for name, p in self.inner._named.items() if part in name}


def never_reduced(engine: Imitation) -> None:
    """The model was moved after DDP was built, so no hook of DDP sees a gradient (PyTorch 104336)."""
    engine.inner._set_reducing = lambda reduces: None
    engine.inner.module.require_backward_grad_sync = False


def sometimes_reduced(engine: Imitation) -> None:
    """Every second iteration calls the model instead of its wrapper."""
    set_reducing = engine.inner._set_reducing
    engine.inner._set_reducing = lambda reduces: set_reducing(reduces and engine.count % 2 == 0)


def norms_not_reduced(engine: Imitation) -> None:
    """The gradients of norms are those of each rank."""
    names = [name for name, _ in engine.model.named_parameters() if "norm" in name]
    engine.model._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]


def reduced_in_pairs(engine: Imitation) -> None:
    """Gradients are averaged over the wrong groups of ranks."""
    engine.group = dist.new_subgroups(2)[0]


def norms_differ(engine: Imitation) -> None:
    """Clipping in bfloat16 leaves other norms' weights on rank 1 (DeepSpeed 1801)."""
    old: dict[str, Tensor] = {}

    def keep() -> None:
        old.update({name: p.detach().clone() for name, p in engine.each("norm").items()})

    def lengthen() -> None:
        if dist.get_rank() == 1:
            for name, parameter in engine.each("norm").items():
                parameter.data += 0.1 * (parameter.detach() - old[name])

    engine.before_step, engine.after_step = keep, lengthen


def never_counted(engine: Imitation) -> None:
    """A compiled step takes the number of the step for a constant (PyTorch 115607)."""

    def reset() -> None:
        for state in engine.inner._optimizer.state.values():
            state["step"].zero_()

    engine.before_step = reset


def rounded_gradients(engine: Imitation) -> None:
    """Gradients are added up in bfloat16, though float32 was asked for."""

    def round_gradients() -> None:
        for parameter in engine.each("").values():
            assert parameter.grad is not None
            parameter.grad.copy_(parameter.grad.bfloat16())

    engine.before_step = round_gradients


def reduced_too_early(engine: Imitation) -> None:
    """A gradient is reduced before its last micro-batch is there."""
    kept: dict[str, Tensor] = {}

    def keep(loss: Tensor) -> Tensor:
        gradients = {name: p.grad for name, p in engine.each("mlp_out").items()}
        kept.update({name: g.clone() for name, g in gradients.items() if g is not None})
        return loss

    def restore() -> None:
        for name, parameter in engine.each("mlp_out").items():
            assert parameter.grad is not None
            parameter.grad.copy_(kept[name])

    engine.at_backward, engine.before_step = keep, restore


def scaled(engine: Imitation) -> None:
    """The loss is divided by the ranks of a group that has one rank only."""
    engine.at_backward = lambda loss: loss * dist.get_world_size()


def weighed_by_rank(engine: Imitation) -> None:
    """Each rank divides by its own count of tokens."""
    engine.at_backward = lambda loss: loss * (1 + 0.1 * dist.get_rank())


def norms_in_bfloat16(engine: Imitation) -> None:
    """Autocast reaches a function that must stay in float32 (Lightning Thunder 725)."""
    for module in engine.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda module, given, result: result.bfloat16().float())


def _without_gradient(name: str, engine: Imitation) -> None:
    """The forward of a linear layer computes with a copy of its weight, which no gradient reaches."""
    module = engine.model.get_submodule(name)

    def forward(x: Tensor) -> Tensor:
        weight = module.weight.detach() + 0 * module.weight
        return functional.linear(x, weight, module.bias)

    module.forward = forward  # type: ignore[method-assign]


def old_weights(engine: Imitation) -> None:
    """A forward takes the weights of the step before, as if a gather had not ended."""
    module = engine.model.get_submodule("blocks.0.mlp_in")
    kept: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        weight = module.weight
        kept.append(weight.detach().clone())
        before = kept[max(0, len(kept) - 3)]  # two micro-batches a step
        del kept[:-4]
        return functional.linear(x, before + (weight - weight.detach()), module.bias)

    module.forward = forward  # type: ignore[method-assign]


def recomputed_otherwise(engine: Imitation) -> None:
    """The recomputed forward of a block draws another dropout than the first one."""

    def drop(module: nn.Module, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(g * (torch.rand_like(g) > 0.05) for g in gradients)

    engine.model.get_submodule("blocks.1").register_full_backward_pre_hook(drop)  # type: ignore[arg-type]


BEFORE: dict[str, Callable[[Imitation], None]] = {
    "norms_not_reduced": norms_not_reduced,
    "reduced_in_pairs": reduced_in_pairs,
    "norms_in_bfloat16": norms_in_bfloat16,
    "frozen": partial(_without_gradient, "blocks.1.mlp_in"),
    "untied": partial(_without_gradient, "head"),
    "old_weights": old_weights,
    "recomputed_otherwise": recomputed_otherwise,
}
AFTER: dict[str, Callable[[Imitation], None]] = {
    "never_reduced": never_reduced,
    "sometimes_reduced": sometimes_reduced,
    "norms_differ": norms_differ,
    "never_counted": never_counted,
    "rounded_gradients": rounded_gradients,
    "reduced_too_early": reduced_too_early,
    "scaled": scaled,
    "weighed_by_rank": weighed_by_rank,
}


def __getattr__(name: str) -> Callable[..., Imitation]:
    fault, is_engine, of = name.partition("_of_")
    if not is_engine:
        raise AttributeError(name)
    return partial(Imitation, fault, of)
