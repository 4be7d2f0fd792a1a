"""Parameter discovery: which parameters are trained, and in which optimizer group."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from zbench.engine.assembly.aliases import check_outside
from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.deferred import is_part
from zbench.engine.parameters.released import Released
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.transport.buffers import storage_of
from zbench.engine.transport.works import Then
from zbench.errors import UnsupportedError, UsageError

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def make_groups(
    model: nn.Module, defaults: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]
) -> list[ParamGroup]:
    """Return the optimizer groups: first one for all unmatched parameters, then one per pattern (fnmatch on
    names; the first match wins).

    A pattern with `frozen` freezes its parameters. UsageError for a pattern that matches nothing.
    """
    groups: list[ParamGroup] = [{**defaults, "params": []}]
    by_pattern = {pattern: {**defaults, **changes, "params": []} for pattern, changes in overrides.items()}
    matched: set[str] = set()
    for name, parameter in model.named_parameters():
        pattern = next((p for p in by_pattern if fnmatchcase(name, p)), None)
        matched |= {pattern} if pattern is not None else set()
        group = groups[0] if pattern is None else by_pattern[pattern]
        group["params"].append(parameter)  # frozen ones too
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


def collect(model: nn.Module, groups: Sequence[ParamGroup]) -> tuple[list[ParamInfo], list[ParamInfo]]:
    """Return the parameters that are trained (they require a gradient and have elements), and the frozen
    ones, both in registration order; tied ones once.
    """
    group_of = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
    trained: list[ParamInfo] = []
    frozen: list[ParamInfo] = []
    for name, p in model.named_parameters():
        if not (p.requires_grad and p.numel()):
            frozen.append(ParamInfo(len(frozen), name, p, -1))
            continue
        if p.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UsageError(
                f"expected parameters of float32, bfloat16 or float16, got {p.dtype} for {name!r}"
            )
        trained.append(ParamInfo(len(trained), name, p, group_of[id(p)]))
    return trained, frozen


def check_buffers(model: nn.Module, dtype: torch.dtype, buffers: torch.dtype) -> None:
    """Raise UsageError for a module that cannot compute with weights of `dtype` beside buffers of another."""
    for name, module in model.named_modules() if dtype != buffers else ():
        if isinstance(module, _BatchNorm) and module.affine and module.track_running_stats:
            raise UsageError(
                f"buffer_dtype: {name!r} ({type(module).__name__}) refuses statistics of {buffers} beside"
                f" weights of {dtype}; leave buffer_dtype out, or build the module with affine=False"
            )


def check_dimensions(model: nn.Module, engine: str) -> None:
    """Raise UnsupportedError for a parameter without dimensions, which an engine of others cannot take."""
    scalar = next((name for name, p in model.named_parameters() if p.dim() == 0), None)
    if scalar is not None:
        raise UnsupportedError(
            f"engine: {engine}: expected parameters of at least one dimension, but {scalar!r} has none; give"
            " it the shape [1], or choose engine: builtin or ddp"
        )


def described(parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor]) -> list[str]:
    """Return a line for each tensor whose values ranks are to share: its name, shape and dtype.

    UsageError for a parameter without memory for each of its elements, or a tensor without a shape.
    """
    named = [*parameters.items(), *buffers.items()]
    for name in (name for name, t in named if is_lazy(t)):
        raise UsageError(f"{name!r} of a lazy module has no shape yet: call the model once on a batch first")
    for name, p in parameters.items():
        if not is_part(p) and (isinstance(p, Released) or _distinct(p).numel() < p.numel()):
            raise UsageError(
                f"expected memory for every element of {name!r}, got one place for several, as expand()"
                " and close() of a stage-3 engine leave. Give the parameter values (p.data = values.clone()),"
                " or build the engine on a new model"
            )
    return [f"{name!r} {list(t.shape)} {t.dtype}{_entries(name, t)}" for name, t in named]


def _entries(name: str, tensor: Tensor) -> str:
    """Return how many entries a sparse tensor has; UsageError for a layout that no collective sends."""
    if tensor.layout is torch.strided:
        return ""
    if tensor.layout not in (torch.sparse_coo, *_COMPRESSED):
        raise UsageError(
            f"expected a dense or sparse tensor for {name!r}, got the layout {tensor.layout}, which ranks"
            " cannot share; keep its values in an ordinary buffer"
        )
    return f" {tensor._nnz()} entries"


def _dense_parts(tensor: Tensor) -> list[Tensor]:
    """Return the dense tensors that hold the values of a tensor: itself, or the parts of a sparse one."""
    if tensor.layout is torch.strided:
        return [_distinct(tensor)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = (
        [tensor.crow_indices(), tensor.col_indices()]
        if by_rows
        else [tensor.ccol_indices(), tensor.row_indices()]
    )
    return [*compressed, tensor.values()]


def check_memory(model: nn.Module) -> None:
    """Raise UsageError for memory of a parameter that another parameter, a buffer, a tensor that a module
    keeps, or something outside of the model also sees. The engine gives its parameters other memory: edits of
    the old memory would be lost, and reads would be stale.
    """
    tensors = [*((n, p) for n, p in model.named_parameters() if not is_part(p)), *model.named_buffers()]
    parameter_ids = {id(p) for p in model.parameters()}
    views: list[Tensor] = []
    for prefix, module in model.named_modules():
        computed = {getattr(hook, "name", None) for hook in module._forward_pre_hooks.values()}
        keys = vars(module).keys() - vars(nn.Module()).keys() - computed  # spectral_norm keeps such a view
        for key in sorted(keys):
            kept = [t for t in _tensors_in(vars(module)[key]) if id(t) not in parameter_ids]
            tensors += [(f"{prefix}.{key}".lstrip("."), t) for t in kept]
        views += [t for key in computed & vars(module).keys() for t in _tensors_in(vars(module)[key])]
    begun: list[tuple[str, Tensor]] = []  # those that reach beyond the beginning of the next one
    for name, tensor in sorted((t for t in tensors if _place(t[1])), key=lambda t: _place(t[1])):
        storage, start, _ = _place(tensor)
        begun = [t for t in begun if _place(t[1])[0] == storage and _place(t[1])[2] > start]
        for earlier, before in begun:
            if parameter_ids & {id(tensor), id(before)} and _overlap(tensor, before):
                p, other = (name, earlier) if id(tensor) in parameter_ids else (earlier, name)
                raise UsageError(
                    f"expected memory for {p!r} alone, but {other!r} shares this memory, and would keep old"
                    " values when the engine moves the parameter. Make both one nn.Parameter (tied weights),"
                    f" compute {other!r} from {p!r} in forward, or give {other!r} its own values (clone())"
                )
        begun.append((name, tensor))
    own = {name: p for name, p in model.named_parameters() if not is_part(p)}
    check_outside(own, [*views, *(t for _, t in tensors)])


def _place(tensor: Tensor) -> tuple[int, ...]:
    """Return the storage of a tensor, and where in it it begins and ends, in bytes; () if it has none."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ()
    size = tensor.element_size()
    start = int(tensor.storage_offset())
    last = sum(int(n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return storage_of(tensor), start * size, (start + last + 1) * size


def _overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors whose places overlap have an element in common: columns of a matrix do not."""
    if one.element_size() != two.element_size():
        return True
    elements = max(_place(one)[2], _place(two)[2]) // one.element_size()
    seen = torch.zeros(elements, dtype=torch.bool, device="cpu")
    seen.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(seen.as_strided(two.shape, two.stride(), two.storage_offset()).any())


def _tensors_in(value: object, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors in a tensor, or in lists and dicts of them."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each, depth - 1)


def prepare(
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, Tensor],
    dtypes: tuple[torch.dtype, torch.dtype],
    collectives: Collectives,
) -> None:
    """Broadcast rank 0's values to every rank; cast float32 parameters that are not trained to the first of
    `dtypes`, and float32 buffers to the second. Ranks have compared what `described` says of them.
    """
    shared = [(name, p.data) for name, p in parameters.items() if not is_part(p)]
    shared += [(name, part) for name, buffer in buffers.items() for part in _dense_parts(buffer.detach())]
    works = [_broadcast(tensor, collectives, Tag(f"values of {name}")) for name, tensor in shared]
    for work in works:
        work.wait()
    untrained = [(p, dtypes[0]) for p in parameters.values() if not (p.requires_grad and p.numel())]
    for tensor, to in [*untrained, *((buffer, dtypes[1]) for buffer in buffers.values())]:
        if tensor.dtype == torch.float32 and not is_part(tensor):
            tensor.data = tensor.data.to(to)


def _distinct(tensor: Tensor) -> Tensor:
    """Return a view without what expand() repeats."""
    repeated = (n > 1 and stride == 0 for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor[tuple(slice(1) if r else slice(None) for r in repeated)]


def _broadcast(tensor: Tensor, collectives: Collectives, tag: Tag) -> Work:
    """Start to copy rank 0's values, as bytes, because backends know few dtypes; tensors with gaps are copied
    first, because backends send contiguous memory.
    """
    if tensor.is_contiguous():
        flat = tensor.as_strided((tensor.numel(),), (1,))  # a stride of one element may be any number
        return collectives.broadcast(flat.view(torch.uint8), 0, tag)
    copy = tensor.contiguous()

    def back() -> None:
        tensor.copy_(copy)

    return Then(collectives.broadcast(copy.view(-1).view(torch.uint8), 0, tag), back)
