"""Sharded initialization, for models that do not fit on one rank: a module's parameters are sharded when it
is complete.

    with sharded_init(process_group):
        model = Gpt(...)
    engine = build_engine(model, spec, process_group)

A submodule is complete when it is registered with its parent, so only the parameters of one module (and those
of the outermost itself) are whole at a time. `nn.Sequential(*layers)` makes all layers before it registers
the first; `nn.ModuleList(layer for ...)` does not. Random numbers are drawn in the usual order, so the values
are those of an ordinary construction. Code that accesses the parameters of a complete module as attributes
(`module.weight`) gets them whole, one module's at a time. A copy of a complete module is in parts, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.base import Rows
from zbench.engine.parameters.hooks import WatchedParameters
from zbench.engine.parameters.released import PART, kinds_of, release, set_refusal, set_values
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.transport.choose import Transport, choose_collectives

_AT_ONCE = 1 << 23  # elements
_PARTS = Tag("the parts of a parameter that was created sharded")
_REFUSAL = (
    "the values of this parameter are not on this rank now: sharded_init keeps a part of them on every rank."
    " Read the attribute of the module (module.weight), or read it in engine.gathered() after build_engine"
)


@contextmanager
def sharded_init(process_group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Keep 1 / world_size of every parameter that is created inside, until `build_engine` takes the model
    over.
    """
    cpu = DeviceMemory(torch.device("cpu"))
    with sharding(choose_collectives(process_group, cpu, cpu), cpu.device):
        yield


@contextmanager
def sharding(collectives: Transport, device: torch.device) -> Iterator[None]:
    """Shard what is created inside, by collectives of the CPU, which are closed at the end.

    device: that of the engine. Parts stay on the CPU until the engine stores them there.
    """
    cutter = _InitSharder(collectives)
    handle = register_module_module_registration_hook(cutter.registered)
    try:
        yield
    finally:
        handle.remove()
        cutter.finish(device)
        collectives.close()


def is_part(parameter: Tensor) -> bool:
    """Return whether a parameter was created under `sharded_init`, so that its data is a placeholder."""
    return hasattr(parameter, PART)


def whole_values(parameter: Tensor, collectives: Collectives) -> Tensor:
    """Return a parameter's whole values; a collective if it was created under `sharded_init`."""
    if not is_part(parameter):
        return parameter.detach()
    part: Tensor = getattr(parameter, PART)
    gathered = collectives.all_gather_small(part, _PARTS).to(parameter.device)
    return gathered.reshape(-1)[: parameter.numel()].view(parameter.shape)


def values_in_turn(parameter: Tensor, collectives: Collectives) -> Iterator[Rows]:
    """Yield all values of a parameter, and what pads its parts at the end.

    A collective if it was created under `sharded_init`, of at most `_AT_ONCE` elements at once.
    """
    if not is_part(parameter):
        yield Rows(parameter.detach().reshape(1, -1), 0, 0)
        return
    part: Tensor = getattr(parameter, PART)
    length = max(1, _AT_ONCE // collectives.world_size)
    for begin in beginnings(part.numel(), length):
        gathered = collectives.all_gather_small(part[begin : begin + length], _PARTS)
        yield Rows(gathered, begin, part.numel())


def beginnings(numel: int, length: int) -> Sequence[int]:
    """Return where pieces of `length` elements begin. What is simulated needs two of them."""
    return range(0, numel, length)


def make_whole(parameter: nn.Parameter, dtype: torch.dtype, collectives: Collectives) -> None:
    """Give a parameter that was built in parts all its values, float32 ones in `dtype`."""
    if is_part(parameter):
        values = whole_values(parameter, collectives)
        values = values.to(dtype) if values.dtype == torch.float32 else values.clone()
        set_values(parameter, kinds_of(parameter).original, values)


def on_meta(model: nn.Module) -> dict[str, nn.Parameter]:
    """Replace what is in parts by parameters on the meta device; return name -> what was replaced."""
    parts = {name: p for name, p in model.named_parameters() if is_part(p)}
    new = {id(p): nn.Parameter(p.new_empty(p.shape, device="meta"), p.requires_grad) for p in parts.values()}
    for module in model.modules():
        named = module._parameters
        named.update({name: new[id(p)] for name, p in named.items() if id(p) in new})
    return parts


def forget_parts(model: nn.Module) -> None:
    """Free the shards of `sharded_init`: the engine has copied them."""
    for parameter in model.parameters():
        if is_part(parameter):
            delattr(parameter, PART)


class _InitSharder:
    """Shards the parameters of registered modules; those that one module was asked for last are whole."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._module: nn.Module | None = None
        self._whole: list[nn.Parameter] = []
        self._watched: list[nn.Module] = []

    def registered(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """Shard the parameters of a module that is complete."""
        for module in child.modules() if child is not None else ():
            if isinstance(module._parameters, WatchedParameters):
                continue
            for parameter in module._parameters.values():
                if parameter is not None and not is_part(parameter):
                    self._cut(parameter)
            module._parameters = WatchedParameters(module._parameters, partial(self._read, module))
            self._watched.append(module)

    def finish(self, device: torch.device) -> None:
        """Shard what is still whole, stop watching the modules, and place the parameters on `device`."""
        self._recut()
        for module in self._watched:
            module._parameters = dict(module._parameters)
            for parameter in module._parameters.values():
                if parameter is not None and is_part(parameter) and parameter.device != device:
                    _place(parameter, device)

    def _read(self, module: nn.Module, parameter: nn.Parameter) -> None:
        if not is_part(parameter) or any(parameter is whole for whole in self._whole):
            return
        if module is not self._module:
            self._recut()
        self._module = module
        set_values(parameter, kinds_of(parameter).original, whole_values(parameter, self._collectives))
        self._whole.append(parameter)

    def _recut(self) -> None:
        for parameter in self._whole:
            self._cut(parameter)
        self._whole = []

    def _cut(self, parameter: nn.Parameter) -> None:
        flat = parameter.detach().reshape(-1)
        comm = self._collectives
        size = -(-flat.numel() // comm.world_size)
        part = flat.new_zeros(size)
        values = flat[comm.rank * size : (comm.rank + 1) * size]
        part[: values.numel()] = values
        setattr(parameter, PART, part)
        set_refusal(parameter, _REFUSAL)
        _place(parameter, flat.device)


def _place(parameter: nn.Parameter, device: torch.device) -> None:
    nowhere = torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape)
    release(parameter, kinds_of(parameter).released, nowhere)
