"""Random numbers of a float64 run: those that the same model draws in its own dtype.

torch draws other numbers for another dtype, and more of the generator's. So stochastic depth, or noise in the
dtype of an input, would make the float64 run another training.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAKES = {torch.rand, torch.randn}
_MAKES_LIKE = {torch.rand_like, torch.randn_like}
_FILLS = {Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_, Tensor.exponential_}


class DrawsIn(TorchFunctionMode):
    """Draws float64 random numbers in another dtype; as a context, on this thread."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _FILLS and args[0].dtype == torch.float64:
            narrow = torch.empty_like(args[0], dtype=self._dtype)
            return args[0].copy_(func(narrow, *args[1:], **options))
        dtype = options.get("dtype")
        if func in _MAKES_LIKE and dtype is None:
            dtype = args[0].dtype
        if func in _MAKES | _MAKES_LIKE and dtype == torch.float64:
            return func(*args, **options | {"dtype": self._dtype}).double()
        return func(*args, **options)
