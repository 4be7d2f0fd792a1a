"""Counts the operators of a step, their FLOPs and bytes, from their arguments and results."""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from zbench.engine.adam.native import native_call
from zbench.estimate.ledger import tensors_of
from zbench.estimate.result import Product, StepWork

_ATEN = torch.ops.aten
_COPY = _ATEN.copy_.default
_WRITE_ONLY = frozenset(
    {_ATEN.zero_, _ATEN.fill_, _ATEN.zeros, _ATEN.ones, _ATEN.full, _ATEN.zeros_like, _ATEN.ones_like}
)
_UNTOUCHED = frozenset(
    {_ATEN.empty, _ATEN.empty_strided, _ATEN.empty_like, _ATEN._unsafe_view, _ATEN._local_scalar_dense}
)
_ROWS = frozenset({_ATEN.embedding, _ATEN.index_select, _ATEN.gather, _ATEN.index})
"""Operators that read as many bytes of their first argument as they return."""


class WorkCounter:
    """Counts the work of operators. offloaded: returns whether a tensor is in offloaded host memory."""

    def __init__(self, offloaded: Callable[[Tensor], bool]) -> None:
        self._offloaded = offloaded
        self._operators = self._streamed = self._host = self._copied = 0
        self._products: Counter[tuple[float, int]] = Counter()

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count one operator."""
        moves = moves_bytes(func)
        self._operators += moves is not None
        if not moves:
            return
        if func is _COPY:
            self._note_copy(args[0], args[1])
        elif func is native_call:
            self._note_native(args[0])
        else:
            nbytes = _touched(func, args, kwargs, out)
            flops = _flops(func, args, kwargs, out)
            if flops:
                self._products[flops, nbytes] += 1
            elif self._is_on_host((args, kwargs)):
                self._host += nbytes
            else:
                self._streamed += nbytes

    def _is_on_host(self, arguments: Any) -> bool:
        tensors = list(tensors_of(arguments))
        return bool(tensors) and all(map(self._offloaded, tensors))

    def _note_copy(self, target: Tensor, source: Tensor) -> None:
        nbytes = target.nbytes + source.nbytes
        here = self._offloaded(target)
        if here != self._offloaded(source):
            self._copied += nbytes // 2
        elif here:
            self._host += nbytes
        else:
            self._streamed += nbytes

    def _note_native(self, tensors: list[Tensor]) -> None:
        """Count an Adam update. It reads and writes all tensors, but it only reads gradients: about 7/4 of
        the bytes. With offloaded state the device tensors (gradients, parameters) are copied over the link.
        """
        offloaded = [tensor for tensor in tensors if self._offloaded(tensor)]
        near = sum(tensor.nbytes for tensor in tensors) - sum(tensor.nbytes for tensor in offloaded)
        self._host += sum(tensor.nbytes for tensor in offloaded) * 7 // 4
        if offloaded:
            self._copied += near
        else:
            self._streamed += near * 7 // 4

    def take(self) -> StepWork:
        """Return the counts."""
        products = [Product(flops, size, n) for (flops, size), n in sorted(self._products.items())]
        return StepWork(self._operators, products, self._streamed, self._host, self._copied)


class Repetition:
    """Counts what happens between two marks more often. counters: the objects that hold the counts.

    again: how many more times. besides: names of attributes that are no counts.
    """

    def __init__(self, counters: Iterable[object], again: int, besides: Collection[str] = ()) -> None:
        self._counters = list(counters)
        self._again = again
        self._besides = besides
        self._before: list[dict[str, Any]] | None = None
        self.is_over = not again

    def mark(self) -> None:
        """Begin, and the next time end."""
        if self.is_over:
            return
        now = [self._counts(counter) for counter in self._counters]
        if self._before is None:
            self._before = copy.deepcopy(now)
            return
        for counter, before, counts in zip(self._counters, self._before, now, strict=True):
            for name, value in counts.items():
                if isinstance(value, Counter):
                    value.update({key: (n - before[name][key]) * self._again for key, n in value.items()})
                else:
                    setattr(counter, name, value + (value - before[name]) * self._again)
        self.is_over = True

    def _counts(self, counter: object) -> dict[str, Any]:
        counts = {name: value for name, value in vars(counter).items() if name not in self._besides}
        return {name: value for name, value in counts.items() if isinstance(value, int | float | Counter)}


@cache
def moves_bytes(func: Any) -> bool | None:
    """Return whether an operator reads or writes memory; None for a collective (see TrafficMeter)."""
    if func.namespace == "c10d":
        return None
    is_view = func.is_view and not func._schema.is_mutable
    return not is_view and func._overloadpacket not in _UNTOUCHED


def _touched(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    written = sum(tensor.nbytes for tensor in tensors_of(out))
    packet = func._overloadpacket
    if packet in _WRITE_ONLY:
        return written
    if packet in _ROWS:
        return 2 * written
    return written + sum(tensor.nbytes for tensor in tensors_of((args, kwargs)))


_ATTENTION: dict[Any, tuple[Callable[..., Any], int, int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3, 4),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4, 7),
    _ATEN._scaled_dot_product_flash_attention: (sdpa_flop_count, 3, 4),
    _ATEN._scaled_dot_product_flash_attention_backward: (sdpa_backward_flop_count, 4, 11),
    _ATEN._scaled_dot_product_efficient_attention: (sdpa_flop_count, 3, 6),
    _ATEN._scaled_dot_product_efficient_attention_backward: (sdpa_backward_flop_count, 4, 11),
}
"""Kernel -> what counts its FLOPs, of how many of its first arguments, and the place of `is_causal`."""


def _flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    packet = func._overloadpacket
    if packet in _ATTENTION:  # a causal mask halves them
        count, tensors, place = _ATTENTION[packet]
        flops = float(count(*(tensor.shape for tensor in args[:tensors])))
        return flops / 2 if any(args[place : place + 1]) else flops
    formula = flop_registry.get(packet)
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=out))
