"""Changes of a training step: of parts of gradients, parameters, moments, and of the ranks' models."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from tests.verify.wrong import Change, Tensors, Wrong, WrongRun, times

Part = Callable[[Tensor], Tensor]
"""Returns a view of a part of a tensor."""


def rows(start: float, stop: float, stride: int = 1) -> Part:
    """Rows from a share of the tensor to another, at least one."""
    return lambda tensor: tensor[int(start * len(tensor)) : max(1, round(stop * len(tensor))) : stride]


def columns(start: float, stop: float) -> Part:
    """Columns from a share of the matrix to another."""
    return lambda matrix: rows(start, stop)(matrix.T).T


def elements(start: float, stop: float) -> Part:
    """Elements of the flat tensor."""
    return lambda tensor: rows(start, stop)(tensor.view(-1))


QUERIES, KEYS, VALUES = (rows(third / 3, (third + 1) / 3) for third in range(3))
FIRST_HALF, SECOND_HALF = rows(0, 0.5), rows(0.5, 1)


def everything(tensor: Tensor) -> Tensor:
    return tensor


def each(function: Callable[[Tensor], Tensor], pattern: str = "*", part: Part = everything) -> Change:
    """Replace a part of some tensors by a function of it. pattern: `matrices` stands for all of them."""

    def change(run: WrongRun, tensors: Tensors) -> None:
        for name, value in tensors.items():
            if fnmatchcase(name, pattern) or (pattern == "matrices" and value.ndim > 1):
                tensors[name] = value.clone()
                part(tensors[name]).copy_(function(part(value)))

    return change


def scaled(factor: float, pattern: str = "*", part: Part = everything) -> Change:
    """Scale a part of some gradients."""
    return each(lambda values: values * factor, pattern, part)


def all_of(*changes: Change) -> Change:
    def change(run: WrongRun, tensors: Tensors) -> None:
        for one in changes:
            one(run, tensors)

    return change


def with_old(
    function: Callable[[Tensor, Tensor], Tensor], pattern: str = "*", part: Part = everything
) -> Change:
    """Replace a part of some gradients by a function of it and of the gradient of the step before."""

    def change(run: WrongRun, gradients: Tensors) -> None:
        for name, value in gradients.items():
            before = run.kept.get(name, value)
            run.kept[name] = value
            if fnmatchcase(name, pattern):
                gradients[name] = value.clone()
                part(gradients[name]).copy_(function(part(value), part(before)))

    return change


def masters(
    function: Callable[[Tensor, Tensor], Tensor], pattern: str = "*", part: Part = everything
) -> Change:
    """Replace a part of some parameters by a function of it after and before the update."""

    def change(run: WrongRun, old: Tensors) -> None:
        for name, master in run.masters.items():
            if fnmatchcase(name, pattern):
                part(master).copy_(function(part(master), part(old[name])))

    return change


def longer(factor: float, pattern: str = "*", part: Part = everything) -> Change:
    """Scale the updates of a part of some parameters."""
    return masters(lambda new, old: old + factor * (new - old), pattern, part)


def moments(
    function: Callable[[Tensor], Tensor], kind: str, pattern: str = "*", part: Part = everything
) -> Change:
    """Replace a part of some moments by a function of it."""

    def change(run: WrongRun, old: Tensors) -> None:
        for name, state in run.state.items():
            if fnmatchcase(name, pattern):
                part(state[kind]).copy_(function(part(state[kind])))

    return change


def published(
    function: Callable[[Tensor, Tensor], Tensor],
    pattern: str = "*",
    part: Part = everything,
    ranks: Sequence[int] = (0, 1),
) -> Change:
    """Replace what some ranks compute with by a function of it and of the weights before the update."""

    def change(run: WrongRun, old: Tensors) -> None:
        for rank in ranks:
            for name, value in run.models[rank].named_parameters():
                if fnmatchcase(name, pattern):
                    part(value.data).copy_(function(part(value.data), part(old[name])))

    return change


def buffers(function: Callable[[Tensor, Tensor], Tensor], ranks: Sequence[int] = (0, 1)) -> Change:
    """Replace running statistics of some ranks by a function of them and of those of the step before."""

    def change(run: WrongRun, old: Tensors) -> None:
        for rank in ranks:
            for name, value in run.models[rank].named_buffers():
                before = run.kept.get(f"{rank}/{name}", value).clone()
                if value.is_floating_point():
                    value.copy_(function(value, before))
                run.kept[f"{rank}/{name}"] = value.clone()

    return change


def of_rank_1(change: Change) -> Wrong:
    """Change what rank 1 adds."""
    return Wrong(of_rank=lambda run, rank, own: change(run, own) if rank == 1 else None)


def decayed(share: float, pattern: str, part: Part) -> Change:
    """Decay a part of some parameters once more, by a share of themselves."""
    return masters(lambda new, old: new - share * old, pattern, part)


def old_weights(new: Tensor, old: Tensor) -> Tensor:
    return old


def no_weights(new: Tensor, old: Tensor) -> Tensor:
    return torch.zeros_like(new)


def in_e4m3(new: Tensor, old: Tensor) -> Tensor:
    return as_float8(torch.float8_e4m3fn)(new.float())


def in_bfloat16(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def mostly_new(new: Tensor, old: Tensor) -> Tensor:
    return torch.where(torch.rand_like(new) < 0.05, old, new)


def partly_old(now: Tensor, old: Tensor) -> Tensor:
    return torch.where(torch.rand_like(now) < 0.01, old, now)


def noisy(share: float) -> Callable[[Tensor], Tensor]:
    return lambda values: values + share * values.square().mean().sqrt() * torch.randn_like(values)


def as_float8(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Round to 8-bit floating point, scaled to its range."""

    def function(values: Tensor) -> Tensor:
        scale = values.abs().max().clamp(min=1e-30) / torch.finfo(dtype).max
        return (values / scale).to(dtype).float() * scale

    return function


def as_integer(levels: int) -> Callable[[Tensor], Tensor]:
    """Round to integers up to `levels`."""

    def function(values: Tensor) -> Tensor:
        scale = values.abs().max().clamp(min=1e-30) / levels
        return (values / scale).round() * scale

    return function


def kept_share(share: float) -> Callable[[Tensor], Tensor]:
    """Keep the largest elements."""

    def function(values: Tensor) -> Tensor:
        size = values.abs()
        return values * (size >= size.flatten().quantile(1 - share))

    return function


def row_means(values: Tensor) -> Tensor:
    return values.mean(dim=-1, keepdim=True).expand_as(values)


def within_two(values: Tensor) -> Tensor:
    most = 2 * float(values.square().mean().sqrt())
    return values.clamp(-most, most)


def swapped(first: str, second: str) -> Change:
    def change(run: WrongRun, gradients: Tensors) -> None:
        gradients[first], gradients[second] = gradients[second], gradients[first]

    return change


def moments_swapped(run: WrongRun, old: Tensors) -> None:
    """Exchange the moments of a matrix between two blocks."""
    names = [f"blocks.{block}.mlp_in.weight" for block in (0, 1)]
    run.state[names[0]], run.state[names[1]] = run.state[names[1]], run.state[names[0]]


def unclipped(run: WrongRun, gradients: Tensors) -> None:
    times(1 / run.coefficients[-1])(run, gradients)


def l2_decay(run: WrongRun, gradients: Tensors) -> None:
    """Add the decay to the gradients."""
    for name in gradients:
        gradients[name] = gradients[name] + 0.1 * run.masters[name]


def delayed(pattern: str, part: Part) -> Change:
    """Apply a part's update one step late."""

    def change(run: WrongRun, old: Tensors) -> None:
        for name, master in run.masters.items():
            if fnmatchcase(name, pattern):
                moved = master - old[name]
                part(master).add_(part(run.kept.get(name, moved) - moved))
                run.kept[name] = moved

    return change
