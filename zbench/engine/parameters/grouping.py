"""Which parameters are stored, gathered and reduced together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import nn

from zbench.engine.parameters.base import ParamInfo
from zbench.engine.partition import GatherGroup


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How parameters are grouped in the flat layout.

    dtypes: the dtype of each dtype group. resident: groups that stay gathered between steps, by index. whole:
    each group is one collective, if no size is asked for.
    """

    dtypes: list[torch.dtype]
    groups: list[GatherGroup]
    resident: frozenset[int] = frozenset()
    whole: bool = False


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
    model: nn.Module,
    param_infos: Sequence[ParamInfo],
    dtype: torch.dtype,
    threshold: int,
    leaves: Collection[nn.Module] = (),
    blocks: Collection[nn.Module] = (),
) -> GroupPlan:
    """Group parameters by the module that owns them, those below one of `leaves` or of `blocks` by that (a
    leaf in a block by the leaf). All of at most `threshold` elements share one group.
    """
    owner: dict[int, int] = {}
    of_leaves = {id(p) for leaf in leaves for p in leaf.parameters()}
    for number, module in enumerate(model.modules()):
        is_leaf = module in leaves
        for p in module.parameters(recurse=is_leaf or module in blocks):
            if is_leaf or module not in blocks or id(p) not in of_leaves:
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
    return GroupPlan(dtypes, groups, frozenset(resident), whole=bool(blocks))


def blocks_of(model: nn.Module, most: int) -> list[nn.Module]:
    """Return the entries of module lists that are gathered whole (a transformer's blocks): the outermost of
    at most `most` elements that hold at most half of the model.
    """
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    most = min(most, _elements(model) // 2)
    for module in model.modules() if most else ():
        if isinstance(module, nn.ModuleList | nn.Sequential) and module not in inside:
            for entry in module.children():
                if not isinstance(entry, nn.ModuleList | nn.ModuleDict) and 0 < _elements(entry) <= most:
                    blocks.append(entry)
                    inside.update(entry.modules())
    return blocks


def _elements(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


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
