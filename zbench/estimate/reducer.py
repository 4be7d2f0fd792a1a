"""What DistributedDataParallel does in C++, in Python, so that it runs on tensors without data.

The reducer's buckets, and the broadcast of the first weights (torch/csrc/distributed/c10d/reducer.cpp and
comm.cpp of torch 2.13). DDP's own Python code around them is torch's.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
from torch.nn.parallel import distributed as ddp

from zbench.engine.transport.buffers import share_storage

_FLATS_IN_FLIGHT = 2


@dataclass(slots=True)
class FlatBucket:
    """One flat buffer, the view of each parameter's gradient in it, and how many gradients it waits for."""

    flat: Tensor
    views: dict[int, Tensor]
    pending: int = 0


class Reducer:
    """torch's Reducer for dense gradients, without unused parameters and communication hooks."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        bucket_indices: Sequence[Sequence[int]],
        _limits: object,
        group: dist.ProcessGroup,
        *more: Any,
        is_card: bool = False,
    ) -> None:
        expect_sparse, cap, find_unused, as_view, _names, first_cap, *_ = more
        assert not find_unused
        assert not any(expect_sparse)
        self._parameters, self._group, self._as_view = parameters, group, as_view
        self._caps = [first_cap, cap]
        self._ready: list[int] | None = []
        """Parameters in the order of their first gradients, until the buckets are rebuilt in this order."""
        self._reduces = False
        self._is_card = is_card
        self._stashed: list[Tensor] = []
        """The buckets before. NCCL's works hold their tensors until the group's next call where one waits
        by a future alone, as DDP does (`shelvesToUnstash_` of ProcessGroupNCCL.cpp).
        """
        self._works: list[dist.Work] = []
        self._buckets: list[FlatBucket] = []
        self._bucket_of: dict[int, FlatBucket] = {}
        self._fill(bucket_indices)
        for k, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._take, k))  # type: ignore[no-untyped-call]

    def _fill(self, bucket_indices: Sequence[Sequence[int]]) -> None:
        """Replace the buckets; a gradient that exists moves to the new one."""
        self._buckets, self._bucket_of = [], {}  # before there are others
        self._buckets = [self._bucket(indices) for indices in bucket_indices]
        self._bucket_of = {k: bucket for bucket in self._buckets for k in bucket.views}

    def _bucket(self, indices: Sequence[int]) -> FlatBucket:
        members = [self._parameters[k] for k in indices]
        first = members[0]
        flat = torch.empty(sum(p.numel() for p in members), dtype=first.dtype, device=first.device)
        views, offset = {}, 0
        for k, p in zip(indices, members, strict=True):
            views[k] = flat.as_strided(p.shape, p.stride(), offset)
            offset += p.numel()
            if self._as_view and p.grad is not None:
                views[k].copy_(p.grad)
                p.grad = views[k]
        return FlatBucket(flat, views)

    def _take(self, k: int, parameter: Tensor) -> None:
        """Move one complete gradient to its bucket, divided by the ranks; reduce a bucket that is full."""
        if not self._reduces:
            return
        if self._ready is not None:
            self._ready.append(k)
        bucket = self._bucket_of[k]
        view, gradient = bucket.views[k], parameter.grad
        assert gradient is not None
        if share_storage(gradient, view):
            view.div_(self._group.size())
        else:
            torch.mul(gradient, 1 / self._group.size(), out=view)
            if self._as_view:
                parameter.grad = view
        del gradient
        bucket.pending -= 1
        if bucket.pending == 0:
            self._stashed.clear()
            work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)
            assert work is not None
            self._works.append(work)
        if not any(each.pending for each in self._buckets):
            self._finish()

    def _finish(self) -> None:
        for work in self._works:
            work.wait()
        self._works.clear()
        self._reduces = False
        if not self._as_view:
            for k, bucket in self._bucket_of.items():
                gradient = self._parameters[k].grad
                assert gradient is not None
                gradient.copy_(bucket.views[k])

    def prepare_for_forward(self) -> None:
        """Begin an iteration; nothing is counted here."""

    def prepare_for_backward(self, _outputs: object) -> None:
        """Let the next backward reduce."""
        self._reduces = True
        for bucket in self._buckets:
            bucket.pending = len(bucket.views)

    def _rebuild_buckets(self) -> bool:
        """Once, after the first backward that reduced: put the gradients of one bucket in their order."""
        if not self._ready:
            return False
        ready, self._ready = self._ready, None
        members: list[Tensor] = [self._parameters[k] for k in ready]
        indices, _ = _compute_bucket_assignment_by_size(members, self._caps, [False] * len(ready), ready)
        if self._is_card:
            self._stashed = [bucket.flat for bucket in self._buckets]
        self._fill(indices)
        return True

    def set_logger(self, logger: object) -> None:
        """Take a logger, and log nothing."""


class Logger:
    """torch's Logger, which logs nothing here."""

    def __init__(self, _reducer: Reducer) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    """Log nothing; compare no shapes: there is one process."""


def _broadcast(_group: dist.ProcessGroup, tensors: list[Tensor], buffer_size: int, _source: int = 0) -> None:
    """Hold the flat buffers in which rank 0's values come: two at a time."""
    indices, _ = _compute_bucket_assignment_by_size(tensors, [buffer_size])
    flats: deque[Tensor] = deque(maxlen=_FLATS_IN_FLIGHT)
    for members in indices:
        flats.append(torch.cat([tensors[k].detach().reshape(-1) for k in members]))


@contextmanager
def in_python(*, is_card: bool) -> Iterator[None]:
    """Run the body with DDP's C++ parts in Python, as over gloo or, on a card, NCCL."""
    with ExitStack() as stack:
        for owner, name, double in (
            (dist, "Reducer", partial(Reducer, is_card=is_card)),
            (dist, "Logger", Logger),
            (dist, "_broadcast_coalesced", _broadcast),
            (ddp, "_verify_param_shape_across_processes", _nothing),
        ):
            stack.enter_context(patch.object(owner, name, double))
        yield
