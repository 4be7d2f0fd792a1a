"""The operator inside a compiled backward graph: it hands a gradient to the call that this backward is of.

The operator carries a position among its graph's inputs and nothing else: no engine, no parameter. One
compiled graph serves many calls (layers that share code, several engines, cached code of another process), so
what a position means is known only while a call's backward runs: that call is *current* on the thread that
runs it.
"""

import threading
from typing import Protocol

import torch
from torch import Tensor

NAMESPACE = "zbench"


class Receiver(Protocol):
    """One call of a compiled graph, as its backward sees it."""

    def receive(self, position: int, grad: Tensor) -> None:
        """Take the gradient of the graph's input at `position`; `grad` may be kept, and must not be
        changed.
        """


class _Current(threading.local):
    receiver: Receiver | None = None


_current = _Current()


def set_current(receiver: Receiver | None) -> None:
    """Set the call to which the operators on this thread deliver gradients; None: no call."""
    _current.receiver = receiver


def deliver(grad: Tensor, position: int) -> None:
    """Hand a gradient to the call that is current: the operator's kernel."""
    receiver = _current.receiver
    if receiver is None:
        raise RuntimeError(
            f"a compiled backward graph produced the gradient of its input {position}, but no engine is"
            " taking gradients: run backward through engine.backward(loss), and not after engine.close()"
        )
    receiver.receive(position, grad)


def _reduce_gradient_fake(grad: Tensor, position: int) -> None:
    return None


# The gradient is declared mutated though it is only read: a mutation is the one effect that dead-code
# elimination, functional passes and inductor's scheduler all respect in an operator without results.
# `flexible_layout`: any strides will do, so inductor need not copy a transposed gradient into rows first.
# `cudagraph_unsafe`: a CUDA graph would call this Python code once, when it is captured, and never when it is
# replayed; inductor splits its graph at such an operator.
# Caches of compiled code outlive versions of this package: with another contract it needs another name.
_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "reduce_lent_gradient(Tensor(a!) grad, int position) -> ()",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout, torch.Tag.cudagraph_unsafe),
)
_library.impl("reduce_lent_gradient", deliver, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(f"{NAMESPACE}::reduce_lent_gradient", _reduce_gradient_fake, lib=_library)

reduce_gradient = torch.ops.zbench.reduce_lent_gradient.default
