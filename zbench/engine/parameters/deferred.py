"""Sharded initialization, for models that do not fit on one rank: a module's parameters are sharded when it
is complete.

    with sharded_init(process_group):
        model = Gpt(...)
    engine = build_engine(model, spec, process_group)

A submodule is complete when it is registered with its parent, so only the parameters of one module (and those
of the outermost itself) are whole at a time. `nn.Sequential(*layers)` makes all layers before it registers
the first; `nn.ModuleList(layer for ...)` does not. Random numbers are drawn in the usual order, so the values
are those of an ordinary construction. Code that accesses the parameters of a complete module as attributes
(`module.weight`) gets them whole, one at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.hooks import WatchedParameters
from zbench.engine.parameters.released import kinds_of, release, set_refusal, set_values
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.transport.choose import choose_collectives

_PART = "_zbench_part"
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
    collectives = choose_collectives(process_group, cpu, cpu)
    cutter = _InitSharder(collectives)
    handle = register_module_module_registration_hook(cutter.registered)
    try:
        yield
    finally:
        handle.remove()
        cutter.finish()
        collectives.close()


def is_part(parameter: Tensor) -> bool:
    """Return whether a parameter was created under `sharded_init`, so that its data is a placeholder."""
    return hasattr(parameter, _PART)


def whole_values(parameter: Tensor, collectives: Collectives) -> Tensor:
    """Return a parameter's whole values; a collective if it was created under `sharded_init`."""
    if not is_part(parameter):
        return parameter.detach()
    part: Tensor = getattr(parameter, _PART)
    gathered = collectives.all_gather_small(part, _PARTS).to(part.device)
    return gathered.reshape(-1)[: parameter.numel()].view(parameter.shape)


def make_whole(parameter: nn.Parameter, dtype: torch.dtype, collectives: Collectives) -> None:
    """Give a parameter that was built in parts all its values, float32 ones in `dtype`."""
    if is_part(parameter):
        values = whole_values(parameter, collectives)
        values = values.to(dtype) if values.dtype == torch.float32 else values.clone()
        set_values(parameter, kinds_of(parameter).original, values)


def forget_parts(model: nn.Module) -> None:
    """Free the shards of `sharded_init`: the engine has copied them."""
    for parameter in model.parameters():
        if is_part(parameter):
            delattr(parameter, _PART)


class _InitSharder:
    """Shards the parameters of registered modules; the parameter that was accessed last is whole."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._whole: nn.Parameter | None = None
        self._watched: list[nn.Module] = []

    def registered(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """Shard the parameters of a module that is complete."""
        for module in child.modules() if child is not None else ():
            if isinstance(module._parameters, WatchedParameters):
                continue
            for parameter in module._parameters.values():
                if parameter is not None and not is_part(parameter):
                    self._cut(parameter)
            module._parameters = WatchedParameters(module._parameters, self._read)
            self._watched.append(module)

    def finish(self) -> None:
        """Shard what is still whole, and stop watching the modules."""
        self._recut()
        for module in self._watched:
            module._parameters = dict(module._parameters)

    def _read(self, parameter: nn.Parameter) -> None:
        if parameter is not self._whole and is_part(parameter):
            self._recut()
            set_values(parameter, kinds_of(parameter).original, whole_values(parameter, self._collectives))
            self._whole = parameter

    def _recut(self) -> None:
        if self._whole is not None:
            self._cut(self._whole)
            self._whole = None

    def _cut(self, parameter: nn.Parameter) -> None:
        flat, comm = parameter.detach().reshape(-1), self._collectives
        size = -(-flat.numel() // comm.world_size)
        part = flat.new_zeros(size)
        values = flat[comm.rank * size : (comm.rank + 1) * size]
        part[: values.numel()] = values
        setattr(parameter, _PART, part)
        nowhere = flat.new_full((), torch.nan).expand(parameter.shape)
        set_refusal(parameter, _REFUSAL)
        release(parameter, kinds_of(parameter).released, nowhere)
