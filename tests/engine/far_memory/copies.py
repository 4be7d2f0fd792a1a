"""Copies that complete late, on another thread, in an order drawn from a seed; memory and collectives.

A copy has two stages, each of which happens only when somebody waits for it or when the seed says so: the
source is read, then the target is written. Until the source is read, nobody may write it; until the target is
written, it holds NaN and nobody may write it either. What breaks this is reported as a fault.

As on a device, to wait for a copy to the device tells the host nothing: its source is free after `release`.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from zbench.engine.protocols import Collectives, Tag
from zbench.testing.adam import bits


class LateCopy:
    """One copy in flight. `finish` yields the values to write; it may block until other ranks have sent."""

    def __init__(
        self, copies: "Copies", name: str, target: Tensor, source: Tensor | None, finish: Callable[[], Tensor]
    ) -> None:
        self._copies, self.name = copies, name
        self.to_device = False
        self._target, self._source, self._finish = target, source, finish
        self._before = None if source is None else source.clone()
        self.read, self.done = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        if target.dtype.is_floating_point:
            target.fill_(torch.nan)

    def wait(self) -> None:
        """Return when the target may be read."""
        self._copies.complete(self, self.done)

    def release(self) -> None:
        """Return when the source may be written."""
        self._copies.complete(self, self.read)

    def behind(self) -> AbstractContextManager[None]:
        """Return a context in which the target may be read: on this device by waiting."""
        self.wait()
        return nullcontext()

    def is_completed(self) -> bool:
        """Whether the copy is done; being asked is an occasion to complete some."""
        self._copies.nudge()
        return self.done.is_set() and self.read.is_set()

    def read_source(self) -> None:
        """First stage; on the copying thread."""
        if (
            self._before is not None
            and self._source is not None
            and not torch.equal(bits(self._source), bits(self._before))
        ):
            self._copies.fault(f"{self.name}: the source was written before the copy had read it")
        self._source = self._before = None
        self.read.set()

    def write_target(self) -> None:
        """Second stage; on the copying thread."""
        try:
            values = self._finish()
            if self._target.dtype.is_floating_point and not bool(self._target.isnan().all()):
                self._copies.fault(f"{self.name}: the target was written while the copy was under way")
            self._target.copy_(values)
        except BaseException as error:
            self.error = error
        self._finish = _nothing  # what it held on to
        self.done.set()


class Copies:
    """The copying thread. `eager`: the share of occasions at which a copy completes that nobody waits for.
    `dawdling`: the share at which a thread is made late.
    """

    def __init__(self, seed: int, eager: float = 0.2, dawdling: float = 0.05) -> None:
        self._draw = random.Random(seed)
        self._eager = eager
        self._dawdling = dawdling
        self._changed = threading.Condition()
        self._pending: list[LateCopy] = []
        self._wanted: list[tuple[LateCopy, threading.Event]] = []
        self._chosen: list[LateCopy] = []
        self._closed = False
        self.faults: list[str] = []
        self.started = 0
        self._thread = threading.Thread(target=self._serve, name="far copies", daemon=True)
        self._thread.start()

    def start(
        self,
        label: str,
        source: Tensor | None,
        target: Tensor,
        finish: Callable[[], Tensor] | None = None,
        *,
        to_device: bool = False,
    ) -> LateCopy:
        """Start to copy `source`, or what `finish` yields, to `target`, whose values are lost at once."""
        with self._changed:
            self.started += 1
            name = f"{label} {self.started}"
            values = source.clone() if finish is None and source is not None else None
            copy = LateCopy(self, name, target, source, finish or (lambda: values))  # type: ignore[arg-type, return-value]
            copy.to_device = to_device
            self._pending.insert(self._draw.randrange(len(self._pending) + 1), copy)
        self.nudge()
        return copy

    def nudge(self) -> None:
        """Complete some copy that nobody waits for, or none."""
        with self._changed:
            if self._pending and self._draw.random() < self._eager:
                self._chosen.append(self._draw.choice(self._pending))
                self._changed.notify_all()

    def dawdle(self) -> None:
        """Let other ranks and threads go ahead, or not."""
        with self._changed:
            seconds = 0.002 if self._draw.random() < self._dawdling else 0.0
        if seconds:
            time.sleep(seconds)

    def complete(self, copy: LateCopy, stage: threading.Event) -> None:
        """Return when a copy has passed a stage; a thread beside the step's own may come late to wait."""
        if threading.current_thread() is not threading.main_thread():
            self.dawdle()
        with self._changed:
            if not stage.is_set():
                self._wanted.append((copy, stage))
                self._changed.notify_all()
        stage.wait()
        if stage is copy.done and copy.error is not None:
            raise copy.error

    def fault(self, text: str) -> None:
        """Remember what the engine did wrong."""
        self.faults.append(text)

    def close(self) -> list[str]:
        """Complete everything; return the faults."""
        for copy in list(self._pending):
            copy.wait()
            copy.release()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        return self.faults

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._chosen or self._closed)
                if self._closed:
                    return
                copy, stage = self._wanted.pop(0) if self._wanted else (self._chosen.pop(0), None)
            if not copy.read.is_set() and not (copy.to_device and stage is copy.done):
                copy.read_source()
            if not copy.done.is_set() and stage is not copy.read:
                copy.write_target()
            with self._changed:
                if copy.done.is_set() and copy.read.is_set() and copy in self._pending:
                    self._pending.remove(copy)


def _nothing(*_: Any) -> Tensor:
    raise AssertionError("this copy is complete")


class FarMemory:
    """Host memory beside an accelerator, as the engine sees it: another device, reached by late copies."""

    prefix = "host_"
    device = torch.device("privateuseone")

    def __init__(self, copies: Copies) -> None:
        self._copies = copies

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self.empty(numel, dtype).zero_()

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return memory of a foreign owner: as that of locked pages, it cannot be resized."""
        owner = torch.full((numel,), torch.nan if dtype.is_floating_point else -1, dtype=dtype)
        return torch.from_numpy(owner.view(torch.uint8).numpy()).view(dtype) if numel else owner

    def occupied(self, nbytes: int) -> int:
        return nbytes

    def copy_in(self, source: Tensor, target: Tensor) -> LateCopy:
        return self._copies.start("copy to the host", source, target)

    def copy_out(self, source: Tensor, target: Tensor) -> LateCopy:
        return self._copies.start("copy to the device", source, target, to_device=True)


@dataclass
class Several:
    """Late copies as one work."""

    copies: Sequence[LateCopy]

    def wait(self) -> None:
        for copy in self.copies:
            copy.wait()

    def is_completed(self) -> bool:
        return all(copy.is_completed() for copy in self.copies)


class FarCollectives:
    """Collectives that come late: until `wait`, what is received is NaN, and what is sent must not change.
    Ranks call them at different times. What `inner` receives is NaN until it has arrived, too.
    """

    def __init__(self, inner: Collectives, copies: Copies) -> None:
        self._inner, self._copies = inner, copies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Several:
        received = poisoned(out)
        self._copies.dawdle()
        work = self._inner.reduce_scatter(send.clone(), received, tag)
        shared = send.untyped_storage()._cdata == out.untyped_storage()._cdata  # sent and received in place
        return self._late("reduce-scatter", work.wait, None if shared else send, [(out, received)])

    def all_gather(self, flat: Tensor, tag: Tag) -> Several:
        gathered = poisoned(flat)
        rank = self._inner.shard
        parts = [t.chunk(self._inner.shards) for t in (flat, gathered)]
        parts[1][rank].copy_(parts[0][rank])
        self._copies.dawdle()
        work = self._inner.all_gather(gathered, tag)
        pairs = [pair for k, pair in enumerate(zip(*parts, strict=True)) if k != rank]
        return self._late("all-gather", work.wait, parts[0][rank], pairs)

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Several:
        copy = tensor.clone() if self._inner.rank == source else poisoned(tensor)
        self._copies.dawdle()
        work = self._inner.broadcast(copy, source, tag)
        return self._late("broadcast", work.wait, None, [(tensor, copy)])

    def _late(
        self,
        label: str,
        wait: Callable[[], object],
        sent: Tensor | None,
        pairs: Sequence[tuple[Tensor, Tensor]],
    ) -> Several:
        """Start one copy for each pair (where to, what of); `wait` returns when the latter is there.

        It is called once: gloo's receive, waited for again, waits for another message.
        """
        arrived = cache(wait)

        def finish(received: Tensor) -> Tensor:
            arrived()
            return received

        return Several(
            [
                self._copies.start(label, sent, target, lambda received=received: finish(received))  # type: ignore[misc]
                for target, received in pairs
            ]
        )


def poisoned(like: Tensor) -> Tensor:
    """Return memory of a tensor's shape in which nothing has arrived."""
    return torch.full_like(like, torch.nan if like.dtype.is_floating_point else -1)
