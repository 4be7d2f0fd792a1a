"""The only file that registers autograd or module hooks."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from zbench.engine.parameters import Trainable


class GradientHooks:
    """Hands every gradient to `accept(index, gradient)` as autograd completes it, and leaves `p.grad`
    empty.
    """

    def __init__(self, trainables: Sequence[Trainable], accept: Callable[[int, Tensor], None]) -> None:
        self._accept = accept
        self._handles = [
            t.parameter.register_post_accumulate_grad_hook(partial(self._take, t.index)) for t in trainables
        ]

    def _take(self, index: int, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            self._accept(index, gradient)

    def remove(self) -> None:
        """Unregister every hook."""
        for handle in self._handles:
            handle.remove()
