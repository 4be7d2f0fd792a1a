"""What autograd keeps for backward in place of the tensors that a region saves (`gathering.py`).

torch checks that a saved tensor has not been changed in place since, but not where hooks keep it: that is
checked here, with torch's message. torch.compile leaves the code of a region alone (`uncompiled`).
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from zbench.engine.parameters.sharded import Member, ShardedGroup

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F, *, calls: bool = False) -> F:
    """Have `torch.compile` break its graph at a function, and leave what that calls alone; with `calls` it
    may compile that. (`torch.compiler.disable` does the same, and imports the compiler, which takes 2 s.)
    """
    marked: Any = function
    marked._torchdynamo_disable, marked._torchdynamo_disable_msg = True, "the engine is not compiled"
    inside = _FrameAction.DEFAULT if calls else _FrameAction.SKIP
    set_code_exec_strategy(marked.__code__, _FrameExecStrategy(_FrameAction.SKIP, inside))
    return function


def _check(tensor: Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation:"
            f" [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version"
            f" {version} instead. Hint: enable anomaly detection to find the operation that failed to compute"
            " its gradient, with torch.autograd.set_detect_anomaly(True)."
        )


class Saved:
    """A tensor that is kept as it is."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        # a node that keeps its own output is never freed
        self._tensor = tensor if tensor.is_leaf else tensor.detach()
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """Return it; RuntimeError if it has been changed."""
        _check(self._tensor, self._version)
        return self._tensor


class SavedView:
    """A view of a parameter in a group, to be made again in backward. Outstanding until it has been asked
    for.
    """

    __slots__ = ("_offset", "_parameter", "_pending", "_size", "_stride", "_version", "group")

    def __init__(self, group: ShardedGroup, member: Member, tensor: Tensor) -> None:
        self.group, self._parameter, self._version = group, member.info.parameter, tensor._version
        self._size, self._stride, self._offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self._pending = True
        group.outstanding += 1

    @classmethod
    def of(cls, group: ShardedGroup, tensor: Tensor) -> "SavedView | None":
        """Return what stands for `tensor`; None where it sees the group's memory as something else than its
        parameter's elements.
        """
        member = group.members[bisect_right(group.starts, int(tensor.storage_offset())) - 1]
        alike = tensor.dtype == group.store.dtypes[group.dtype_group] and not tensor.is_neg()
        alike = alike and tensor._version == member.info.parameter._version  # not by way of p.data
        return cls(group, member, tensor) if alike else None

    def tensor(self) -> Tensor:
        """Return it from the group's whole values; RuntimeError if they have changed."""
        self._settle()
        _check(self._parameter, self._version)
        assert self.group.full is not None
        return self.group.full.as_strided(self._size, self._stride, self._offset)

    def _settle(self) -> None:
        self.group.outstanding -= self._pending
        self._pending = False

    @uncompiled
    def __del__(self) -> None:
        self._settle()
