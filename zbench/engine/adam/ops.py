"""The operator through which native code is called on tensors.

Native code takes addresses, and a fake tensor has none. So every native call goes through torch's dispatcher
as one operator over the tensors that it reads and writes. Its kernel makes the call; its fake kernel makes
the checks alone, since native code allocates no tensors.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

NAMESPACE = "zbench"


def _nothing() -> None:
    """Where there is no memory, nothing happens."""


_calls: dict[int, tuple[Callable[[], object], Callable[[], object]]] = {}
_numbers = itertools.count()


def call_native(
    call: Callable[[], object], tensors: Sequence[Tensor], otherwise: Callable[[], object] = _nothing
) -> None:
    """Make `call`, which takes the addresses of `tensors`; `otherwise` where they have no memory."""
    if not tensors:
        call()
        return
    number = next(_numbers)
    _calls[number] = call, otherwise
    try:
        native_call(tensors, number)
    finally:
        del _calls[number]


def _call(tensors: Sequence[Tensor], number: int) -> None:
    _calls[number][0]()


def call_without_memory(tensors: Sequence[Tensor], number: int) -> None:
    """Do what a native call does where its tensors have no memory: the operator's fake kernel."""
    _calls[number][1]()


_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("native_call(Tensor(a!)[] tensors, int number) -> ()")  # type: ignore[no-untyped-call]
_library.impl("native_call", _call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(f"{NAMESPACE}::native_call", call_without_memory, lib=_library)
native_call = torch.ops.zbench.native_call.default
"""The operator: (tensors, number of the call)."""
