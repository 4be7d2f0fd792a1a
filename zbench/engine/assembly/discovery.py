"""Which parameters are trained, in which optimizer group, and in which order backward produces their
gradients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.engine.parameters.deferred import is_part
from zbench.engine.parameters.replicated import ParamInfo
from zbench.engine.partition import GatherGroup
from zbench.engine.protocols import Collectives, Work
from zbench.engine.transport.works import Then
from zbench.errors import UsageError


def make_groups(
    model: nn.Module, defaults: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]
) -> list[ParamGroup]:
    """Return one group for each pattern (fnmatch on names, the first match wins) and one, first, for the
    rest.

    A pattern whose override says `frozen` freezes its parameters. UsageError for a pattern that matches
    nothing.
    """
    groups: list[ParamGroup] = [{**defaults, "params": []}]
    by_pattern = {pattern: {**defaults, **changes, "params": []} for pattern, changes in overrides.items()}
    matched: set[str] = set()
    for name, parameter in model.named_parameters():
        pattern = next((p for p in by_pattern if fnmatchcase(name, p)), None)
        matched |= {pattern} if pattern is not None else set()
        group = groups[0] if pattern is None else by_pattern[pattern]
        group["params"].append(parameter)  # frozen ones too: they may be unfrozen later
        if group.get("frozen"):
            parameter.requires_grad_(False)
    for pattern in by_pattern:
        if pattern not in matched:
            names = ", ".join(name for name, _ in list(model.named_parameters())[:5])
            raise UsageError(
                f"param_groups: the pattern {pattern!r} matches no parameter; there are {names}, ..."
            )
    groups += [group for group in by_pattern.values() if group["params"]]
    for group in groups:
        group.pop("frozen", None)
    return groups


def collect(model: nn.Module, groups: Sequence[ParamGroup]) -> list[ParamInfo]:
    """Return the parameters that require a gradient and have elements, in registration order; tied ones
    once.
    """
    group_of = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
    found = [
        (name, p)
        for name, p in model.named_parameters()
        if p.requires_grad and p.numel() and id(p) in group_of
    ]
    for name, p in found:
        if p.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UsageError(
                f"expected parameters of float32, bfloat16 or float16, got {p.dtype} for {name!r}"
            )
    return [ParamInfo(index, name, p, group_of[id(p)]) for index, (name, p) in enumerate(found)]


def collect_frozen(model: nn.Module, param_infos: Sequence[ParamInfo]) -> list[ParamInfo]:
    """Return the parameters that are not trained, in registration order; they belong to no group."""
    trained = {id(t.parameter) for t in param_infos}
    found = [(name, p) for name, p in model.named_parameters() if id(p) not in trained]
    return [ParamInfo(index, name, p, -1) for index, (name, p) in enumerate(found)]


def prepare(model: nn.Module, dtype: torch.dtype, collectives: Collectives) -> None:
    """Give every rank the values of rank 0, and what is not trained its dtype (float32 becomes `dtype`).

    UsageError for a parameter without memory for each of its elements.
    """
    works: list[Work] = []
    for name, parameter in model.named_parameters():
        if not is_part(parameter):
            if _distinct(parameter).numel() < parameter.numel():
                raise UsageError(
                    f"expected memory for every element of {name!r}, got one place for several, as expand()"
                    " or close() of a stage-3 engine leaves it; give it values (p.data = values.clone()), or"
                    " build the engine on a new model"
                )
            works.append(_broadcast(parameter.data, collectives))
    works += [_broadcast(_distinct(buffer.data), collectives) for buffer in model.buffers()]
    for work in works:
        work.wait()
    for tensor in [*(p for p in model.parameters() if not p.requires_grad), *model.buffers()]:
        if tensor.dtype == torch.float32:
            tensor.data = tensor.data.to(dtype)


def _distinct(tensor: Tensor) -> Tensor:
    """Return a view of what expand() repeats, once."""
    repeated = (n > 1 and stride == 0 for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor[tuple(slice(1) if r else slice(None) for r in repeated)]


def _broadcast(tensor: Tensor, collectives: Collectives) -> Work:
    """Start to copy rank 0's values; backends send memory as it lies, so what has gaps goes by a copy."""
    if torch.empty_like(tensor, device="meta").stride() == tensor.stride():
        return collectives.broadcast(tensor, 0)
    copy = tensor.contiguous()

    def back() -> None:
        tensor.copy_(copy)

    return Then(collectives.broadcast(copy, 0), back)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How parameters are grouped in the flat layout; `resident` are those that stage 3 keeps whole."""

    dtypes: list[torch.dtype]
    groups: list[GatherGroup]
    resident: frozenset[int] = frozenset()


def replicated_groups(
    param_infos: Sequence[ParamInfo], dtype: torch.dtype, alignment: int, standalone_threshold: float
) -> GroupPlan:
    """Group replicated parameters: one group per dtype, in backward order.

    A parameter of at least `standalone_threshold` elements whose size is a multiple of `alignment` has a
    group of its own, so its gradient can be reduced without a copy.
    """
    dtypes, dtype_groups = _dtype_groups(param_infos, dtype)
    numel = [t.parameter.numel() for t in param_infos]
    groups: list[GatherGroup] = []
    for dtype_group, members in enumerate(dtype_groups):
        alone = [i for i in members if numel[i] >= standalone_threshold and numel[i] % alignment == 0]
        groups += [GatherGroup((i,), dtype_group) for i in alone]
        groups += _unless_empty(tuple(i for i in members if i not in set(alone)), dtype_group)
    return GroupPlan(dtypes, groups)


def module_groups(
    model: nn.Module, param_infos: Sequence[ParamInfo], dtype: torch.dtype, threshold: int
) -> GroupPlan:
    """Group parameters by the module that owns them, and those of at most `threshold` elements in one
    region.
    """
    owner: dict[int, int] = {}
    for number, module in enumerate(model.modules()):
        for p in module.parameters(recurse=False):
            owner.setdefault(id(p), number)
    dtypes, dtype_groups = _dtype_groups(param_infos, dtype)
    groups: list[GatherGroup] = []
    resident: set[int] = set()
    for dtype_group, members in enumerate(dtype_groups):
        large = [i for i in members if param_infos[i].parameter.numel() > threshold]
        by_owner = groupby(large, key=lambda i: owner[id(param_infos[i].parameter)])
        groups += [GatherGroup(tuple(of_one), dtype_group) for _, of_one in by_owner]
        small = _unless_empty(tuple(i for i in members if i not in set(large)), dtype_group)
        resident |= {len(groups)} if small else set()
        groups += small
    return GroupPlan(dtypes, groups, frozenset(resident))


def _unless_empty(members: tuple[int, ...], dtype_group: int) -> list[GatherGroup]:
    return [GatherGroup(members, dtype_group)] if members else []


def _dtype_groups(
    param_infos: Sequence[ParamInfo], dtype: torch.dtype
) -> tuple[list[torch.dtype], list[list[int]]]:
    """Return the dtypes that parameters are stored in, and the parameters of each in backward order."""
    stored = {
        t.index: dtype if t.parameter.dtype == torch.float32 else t.parameter.dtype for t in param_infos
    }
    backward_order = [t.index for t in reversed(param_infos)]
    dtypes = list(dict.fromkeys(stored[i] for i in backward_order))
    return dtypes, [[i for i in backward_order if stored[i] == d] for d in dtypes]
