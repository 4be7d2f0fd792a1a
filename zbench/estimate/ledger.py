"""Counts the memory of every tensor from its allocation until it is freed, for fake and real tensors.

Memory is counted between operators: memory that one operator allocates and frees (a kernel's scratch) is not
counted. A storage counts from the first operator that returns a tensor on it, with its size after each
`resize_`, until it is freed.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.engine.transport.buffers import storage_of

PARAMETERS, GRADIENTS, MASTER, MOMENTS = "parameters", "gradients", "master", "moments"
BUCKETS, SPECULATIVE, ACTIVATIONS, TEMPORARIES = "buckets", "speculative", "activations", "temporaries"

_PACKAGE = Path(__file__).parents[1]
_HIDDEN = tuple(f"{_PACKAGE / folder}/" for folder in ("estimate", "measure"))
_TORCH = f"{torch.__path__[0]}/"
_ENGINE = f"{_PACKAGE / 'engine'}/"
_ON_BEHALF = ("memory/", "adam/", "parameters/hooks.py:__call__")
"""Engine code that allocates for its caller; the last runs a module's own forward."""
_TABLE = {  # the longest match counts; tests/estimate/test_sites.py checks these names against the engine
    "transport/buffers.py": BUCKETS,
    "parameters/": PARAMETERS,
    "gradients/storage.py:__init__": GRADIENTS,
    "gradients/storage.py:target": GRADIENTS,
    "gradients/storage.py:lend": GRADIENTS,
    "optimizer/shard_optimizer.py": MOMENTS,
    "assembly/optimizer.py:_masters_in": MASTER,
    "speculative/rollback.py": SPECULATIVE,
    "assembly/speculation.py": SPECULATIVE,
}
_FSDP = "distributed/fsdp/_fully_shard"
_TORCHS_TABLE = {
    f"{_FSDP}/_fsdp_param.py": PARAMETERS,
    f"{_FSDP}/_fsdp_collectives.py": BUCKETS,
    "distributed/optim/zero_redundancy_optimizer.py": PARAMETERS,
    "optim/adam.py:_init_group": MOMENTS,
}
"""Places of torch's own engines; what torch allocates anywhere else, it allocates for its caller."""
MODEL = "model"
"""Allocated by code outside the engine, such as the model's forward."""
_LIFT = torch.ops.aten.lift_fresh.default


@dataclass(slots=True)
class Allocation:
    """Bytes held from moment `born` to `died`. A moment is the number of a change of the ledger. stream: the
    identity of the one that was current.
    """

    nbytes: int
    category: str
    where: str
    phase: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    host: bool
    stream: int = 0
    born: int = 0
    died: int = sys.maxsize

    def alive(self, moment: int) -> bool:
        """Return whether it holds memory after the change `moment`."""
        return self.born <= moment < self.died


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operator's arguments or results; torch's own pytree takes ten times as long."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, dict):
        yield from tensors_of([*value.values()])


class AllocationLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The allocations of the operators that run in this mode, and the peaks of the live bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocations: list[Allocation] = []
        self.releases: list[int] = []
        self.live = {False: 0, True: 0}  # by host
        self.moment = 0
        self.phase = "build"
        self.restart_peak()
        self._on_host = 0
        self._held: dict[int, tuple[Any, Allocation]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # it asks again, for what it holds
            return NotImplemented
        out = self.run(func, args, kwargs or {})
        if func is not _LIFT or args[0].untyped_storage().resizable():  # memory of numpy is not counted
            with self.on_host() if self._computes_on_host(args, kwargs) else nullcontext():
                for tensor in tensors_of(out):
                    self._note_tensor(tensor)
        return out

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator."""
        return func(*args, **kwargs)

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Count allocations in the body as offloaded host memory."""
        self._on_host += 1
        try:
            yield
        finally:
            self._on_host -= 1

    def move_to_device(self, tensors: Iterable[Tensor]) -> None:
        """Count what is in offloaded host memory as copied to the device, and freed there."""
        for tensor in tensors:
            key = storage_of(tensor)
            if self.is_offloaded(tensor):
                reference, before = self._held[key]
                after = replace(before, host=False, phase=self.phase)
                self._held[key] = (reference, after)
                self._begin(after)
                self._end(before)

    def is_offloaded(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in offloaded host memory."""
        held = self._held.get(storage_of(tensor))
        return held is not None and held[1].host

    def _computes_on_host(self, args: Any, kwargs: Any) -> bool:
        """Return whether an operator has tensors, and all are in offloaded host memory."""
        if not self.live[True]:
            return False
        are_offloaded = map(self.is_offloaded, tensors_of((args, kwargs)))
        return next(are_offloaded, False) and all(are_offloaded)

    def held_as(self, tensor: Tensor) -> str:
        """Return the category of a tensor's memory; MODEL if it was not allocated here."""
        held = self._held.get(storage_of(tensor))
        return MODEL if held is None else held[1].category

    def call(self, tensors: Iterable[Tensor], category: str) -> None:
        """Set the category of the memory of tensors, from its allocation on."""
        for tensor in tensors:
            held = self._held.get(storage_of(tensor))
            if held is not None:
                held[1].category = category

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count allocations in the body, also those by calls that are not operators."""
        resize, state = torch.UntypedStorage.resize_, torch.random.get_rng_state

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        def get_rng_state() -> Tensor:
            rng_state = state()
            self._note_tensor(rng_state)
            return rng_state

        with (
            patch.object(torch.UntypedStorage, "resize_", resize_),
            patch.object(torch.random, "get_rng_state", get_rng_state),
            patch.object(torch, "get_rng_state", get_rng_state),
            self,
        ):
            yield

    def release(self) -> None:
        """Note the moment of a `torch.cuda.empty_cache`."""
        self.moment += 1
        self.releases.append(self.moment)

    def restart_peak(self) -> None:
        """Reset the peaks to the bytes that are live now."""
        self.peak = self.live.copy()
        self.peak_of_both = sum(self.live.values())
        self.peak_moment = dict.fromkeys(self.live, self.moment)
        self.peak_phase = dict.fromkeys(self.live, self.phase)

    def _note_tensor(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._held and tensor.device.type != "meta":
            self._take(storage, tensor)

    def _take(self, storage: torch.UntypedStorage, tensor: Tensor) -> None:
        category, where = allocation_site()
        allocation = Allocation(
            storage.nbytes(),
            category,
            where,
            self.phase,
            tuple(tensor.shape),
            tensor.dtype,
            host=bool(self._on_host),
            stream=id(torch.cpu.current_stream()),  # FSDP2's, which does nothing on a CPU
        )
        key = storage._cdata
        self._held[key] = (weakref.ref(storage, lambda _: self._drop(key)), allocation)
        self._begin(allocation)

    def _begin(self, allocation: Allocation) -> None:
        self.moment += 1
        allocation.born, host = self.moment, allocation.host
        self.allocations.append(allocation)
        self.live[host] += allocation.nbytes
        self.peak_of_both = max(self.peak_of_both, sum(self.live.values()))
        if self.live[host] > self.peak[host]:
            self.peak[host], self.peak_moment[host] = self.live[host], self.moment
            self.peak_phase[host] = self.phase

    def _drop(self, key: int) -> None:
        _, allocation = self._held.pop(key)
        self._end(allocation)

    def _end(self, allocation: Allocation) -> None:
        self.moment += 1
        allocation.died = self.moment
        self.live[allocation.host] -= allocation.nbytes

    def _resized(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._held:
            return
        reference, before = self._held[key]
        self._end(before)
        after = replace(before, nbytes=storage.nbytes(), phase=self.phase, died=sys.maxsize)
        self._held[key] = (reference, after)
        self._begin(after)

    def by_category(self, moment: int, *, host: bool) -> dict[str, int]:
        """Return category -> bytes live at one moment, in device memory or in offloaded host memory."""
        total: Counter[str] = Counter()
        for allocation in self.allocations:
            if allocation.host == host and allocation.alive(moment):
                total[self.category(allocation)] += allocation.nbytes
        return {name: size for name, size in total.items() if size}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count allocations in the body under `phase`."""
        before = self.phase
        begin = len(self.allocations)
        self.phase = phase
        try:
            yield
        finally:
            self.phase = before
            if phase == "forward":  # activations outlive the forward
                for allocation in self.allocations[begin:]:
                    if allocation.category == MODEL and allocation.died <= self.moment:
                        allocation.category = TEMPORARIES

    def category(self, allocation: Allocation) -> str:
        """Return the category of an allocation. Model memory that outlives the forward, or that the backward
        allocates (recomputation), is an activation.
        """
        if allocation.category != MODEL:
            return allocation.category
        if allocation.phase == "build":
            return PARAMETERS
        return TEMPORARIES if allocation.phase == "optimizer" else ACTIVATIONS


def allocation_site() -> tuple[str, str]:
    """Return (category, file:line) of the current allocation; MODEL if the engine did not allocate it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # not the code itself: that of torch's compiler may hold constants without a hash
        category = _category(frame.f_code.co_filename, frame.f_code.co_name)
        if category is not None:
            return category, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return MODEL, ""


@cache
def _category(file: str, function: str) -> str | None:
    if file.startswith(_HIDDEN) or file.startswith("<"):
        return None
    if file.startswith(_TORCH):
        return _found(_TORCHS_TABLE, f"{file.removeprefix(_TORCH)}:{function}")
    if not file.startswith(_ENGINE):
        return MODEL
    place = f"{file.removeprefix(_ENGINE)}:{function}"
    return None if place.startswith(_ON_BEHALF) else _found(_TABLE, place) or TEMPORARIES


def _found(table: Mapping[str, str], place: str) -> str | None:
    matches = [key for key in table if place.startswith(key)]
    return table[max(matches, key=len)] if matches else None
