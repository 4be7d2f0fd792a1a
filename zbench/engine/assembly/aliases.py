"""Finds a parameter whose memory something outside of the model can write: another process, a numpy array or
another buffer of Python, a tensor that the program keeps. The engine moves its parameters to other memory, so
such edits would be lost.

torch tells how many tensors use a storage, and whether torch allocated the memory, but not which objects use
it. torch has not allocated the memory of loaded files either. So if a parameter is suspect, the objects of
this program are searched, which takes about a second. A suspect that no object shares is accepted.
"""

import array
import ctypes
import gc
import mmap
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zbench.errors import UsageError

_BUFFERS = (bytearray, memoryview, array.array, mmap.mmap, ctypes.Array)
_AT_ONCE = 10_000  # objects


def check_outside(parameters: Mapping[str, nn.Parameter], inside: Collection[Tensor]) -> None:
    """Raise UsageError for memory of a parameter that something outside of the model shares. inside: tensors
    of the model, the parameters among them.
    """
    real = {name: p for name, p in parameters.items() if _has_memory(p)}
    for name, p in real.items():
        if p.device.type == "cpu" and p.untyped_storage().is_shared():
            raise _refusal(name, "other processes (share_memory_, torch.multiprocessing, torch.from_file)")
    if not (_shares_tensors(real, inside) or _is_foreign(real)):
        return
    gc.collect()  # a tensor that nothing refers to any more is no alias
    if _shares_tensors(real, inside):
        _search(real, _tensors_outside(inside))
    if _is_foreign(real):
        _search(real, _arrays())


def _has_memory(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():  # a parameter of another engine, too
        try:
            return tensor.layout is torch.strided and tensor.data_ptr() != 0
        except RuntimeError:  # fake tensors, and wrappers of others
            return False


def _shares_tensors(parameters: Mapping[str, nn.Parameter], inside: Collection[Tensor]) -> bool:
    """Return whether more tensors use a parameter's storage than the model has."""
    storages = [t.untyped_storage() for t in {id(t): t for t in inside}.values() if _has_memory(t)]
    known: dict[int, int] = {}
    for storage in storages:
        known[storage._cdata] = known.get(storage._cdata, 0) + 1
    del storages
    for p in parameters.values():
        storage = p.untyped_storage()  # which counts, too
        if torch._C._storage_Use_Count(storage._cdata) > known[storage._cdata] + 1:
            return True
    return False


def _is_foreign(parameters: Mapping[str, nn.Parameter]) -> bool:
    """Return whether torch does not own the memory of some parameter, or has lent it to numpy."""
    return any(p.device.type == "cpu" and not p.untyped_storage().resizable() for p in parameters.values())


Span = tuple[int, int]
"""The first address, and the address after the last."""


def _search(parameters: Mapping[str, nn.Parameter], outside: Iterator[tuple[str, Span]]) -> None:
    """Raise UsageError if a span outside overlaps a parameter."""
    spans = sorted((*_span(p), name) for name, p in parameters.items())
    starts = [start for start, _, _ in spans]
    longest = max(stop - start for start, stop, _ in spans)
    for description, (start, stop) in outside:
        for k in range(bisect_right(starts, stop - 1) - 1, -1, -1):
            if starts[k] + longest <= start:
                break
            if spans[k][1] > start:
                raise _refusal(spans[k][2], description)


def _span(tensor: Tensor) -> Span:
    with torch._C.DisableTorchFunctionSubclass():
        start = tensor.data_ptr()
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        return start, start + (last + 1) * tensor.element_size()


def _tensors_outside(inside: Collection[Tensor]) -> Iterator[tuple[str, Span]]:
    """Yield the tensors of this program that are not the model's."""
    known = {id(t) for t in inside} | {id(t._base) for t in inside}
    for value in gc.get_objects():
        if issubclass(type(value), Tensor) and id(value) not in known and _has_memory(value):
            yield f"a tensor of shape {list(value.shape)} that this program keeps", _span(value)


def _arrays() -> Iterator[tuple[str, Span]]:
    """Yield numpy arrays, and other writable buffers of Python, that this program refers to."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    kinds = (numpy.ndarray, *_BUFFERS)
    for value in _values_of(kinds):
        if isinstance(value, numpy.ndarray):
            found: Any = value
        else:
            try:
                found = numpy.frombuffer(value, numpy.uint8)
            except (ValueError, BufferError, TypeError):  # closed, or with gaps
                continue
        if found.size and found.flags.writeable:
            low = high = found.__array_interface__["data"][0]
            for n, step in zip(found.shape, found.strides, strict=True):
                low, high = low + min(0, (n - 1) * step), high + max(0, (n - 1) * step)
            description = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
            yield f"a {description} that this program keeps", (low, high + found.itemsize)


def _values_of(kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield the objects of some types that containers, modules, frames or closures refer to."""
    everything = [*gc.get_objects(), [value for frame in _frames() for value in frame.f_locals.values()]]
    seen: set[int] = set()
    for first in range(0, len(everything), _AT_ONCE):
        objects = everything[first : first + _AT_ONCE]
        level = [*objects, *gc.get_referents(*objects)]
        while level:
            types = {kind for kind in set(map(type, level)) if issubclass(kind, (*kinds, dict, tuple))}
            level = [value for value in level if type(value) in types and id(value) not in seen]
            seen.update(map(id, level))
            yield from (value for value in level if issubclass(type(value), kinds))
            # the garbage collector leaves out dicts and tuples that hold nothing it knows, such as arrays
            hidden = [v for v in level if issubclass(type(v), dict | tuple) and not gc.is_tracked(v)]
            level = gc.get_referents(*hidden)


def _frames() -> Iterator[Any]:
    for frame in sys._current_frames().values():
        outer = frame
        while outer is not None:
            yield outer
            outer = outer.f_back  # type: ignore[assignment]


def _refusal(name: str, outside: str) -> UsageError:
    return UsageError(
        f"expected memory for {name!r} alone, but {outside} can write it, and these edits would be lost when"
        " the engine moves the parameter. Give the parameter its own values before build_engine (p.data ="
        " p.data.clone()), or give up the other use (del)"
    )
