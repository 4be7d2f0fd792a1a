"""Operations of a float64 run that torch has in no float64 form, or in one that is another operation.

torch draws other random numbers for another dtype, and more of the generator's. So stochastic depth, or noise
in the dtype of an input, would make the float64 run another training. Grouped matrix products, which mixtures
of experts use, have kernels for shorter dtypes only.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAKES = {torch.rand, torch.randn}
_MAKES_LIKE = {torch.rand_like, torch.randn_like}
_FILLS = {Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_, Tensor.exponential_}
_GROUPED = {getattr(torch, "_grouped_mm", None)}  # functional.grouped_mm calls it


class Float64Mode(TorchFunctionMode):
    """Draws float64 random numbers in the dtype of the model; as a context, on this thread."""

    def __init__(self, dtype: torch.dtype) -> None:
        """dtype: of the model in the run that the float64 run belongs to."""
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
        if func in _GROUPED and args[0].dtype == torch.float64 and options.get("bias") is None:
            return _grouped(args[0], args[1], options["offs"])
        return func(*args, **options)


def _grouped(rows: Tensor, matrices: Tensor, offs: Tensor) -> Tensor:
    """Return [N, M]: the rows [N, K] of each group times its matrix [K, M]; 0 for rows of no group.

    offs [G]: the end of each group.
    """
    ends = [0, *offs.tolist()]
    parts = [rows[first:end] @ matrix for (first, end), matrix in zip(pairwise(ends), matrices, strict=True)]
    return torch.cat([*parts, rows.new_zeros(len(rows) - ends[-1], matrices.shape[-1])])
