"""Counts collectives: calls, payload bytes, and the time that their caller spends in them."""

from collections import Counter
from typing import Any

from torch import Tensor

from zbench.engine.protocols import Collectives, Tag, Work
from zbench.measure.clock import PhaseClock
from zbench.record.record import Traffic


class TrafficMeter:
    """Counts the collectives of an engine that is built with `count`; peers are not, and have no traffic."""

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def count(self, inner: Collectives) -> Collectives:
        """Return collectives that count into this meter and call `inner`."""
        return CountingCollectives(inner, self)

    def note(self, kind: str, size: int) -> None:
        """Count one call of `size` bytes."""
        self._calls[kind] += 1
        self._bytes[kind] += size

    def take(self) -> dict[str, Traffic]:
        """Return kind -> traffic since the last call, and reset it to zero."""
        taken = {kind: Traffic(calls, self._bytes[kind]) for kind, calls in self._calls.items()}
        self._calls.clear()
        self._bytes.clear()
        return taken


class CountingCollectives:
    """Collectives that count each call and pass it on.

    The bytes of a call are the payload that this rank passes in, not the bytes on the network. That is the
    whole `send` of a reduce_scatter, this rank's shard of an all_gather, and the words of an add_up (an
    all_reduce). It is the values of an all_gather_small or gather_shards, which count as one kind, and the
    tensor of a broadcast, on its source only. A barrier counts 0. With one rank nothing is counted.
    """

    def __init__(self, inner: Collectives, meter: TrafficMeter) -> None:
        self.rank, self.world_size = inner.rank, inner.world_size
        self.shard, self.shards = inner.shard, inner.shards
        self._inner, self._meter, self._clock = inner, meter, meter.clock

    def _note(self, kind: str, size: int) -> None:
        if self.world_size > 1:
            self._meter.note(kind, size)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `inner` that is not in the protocol; such methods send no payload."""
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self._note("reduce_scatter", send.nbytes)
        with self._clock.phase("reduce"):
            return _TimedWork(self._inner.reduce_scatter(send, out, tag), self._clock, "reduce")

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        self._note("all_gather", flat.nbytes // self.shards)
        with self._clock.phase("gather"):
            return _TimedWork(self._inner.all_gather(flat, tag), self._clock, "gather")

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        self._note("all_gather_small", values.nbytes)
        with self._clock.phase("reduce"):
            return self._inner.all_gather_small(values, tag)

    def gather_shards(self, values: Tensor, tag: Tag) -> Tensor:
        self._note("all_gather_small", values.nbytes)
        with self._clock.phase("reduce"):
            return self._inner.gather_shards(values, tag)

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        self._note("all_reduce", words.nbytes)
        with self._clock.phase("reduce"):
            return self._inner.add_up(words, tag)

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        self._note("broadcast", tensor.nbytes if source == self.rank else 0)
        with self._clock.phase("gather"):
            return _TimedWork(self._inner.broadcast(tensor, source, tag), self._clock, "gather")

    def barrier(self) -> None:
        self._note("barrier", 0)
        with self._clock.phase("reduce"):
            self._inner.barrier()


class _TimedWork:
    """An asynchronous collective whose waiting time is counted."""

    def __init__(self, inner: Work, clock: PhaseClock, phase: str) -> None:
        self._inner, self._clock, self._phase = inner, clock, phase

    def wait(self) -> None:
        with self._clock.phase(self._phase):
            self._inner.wait()

    def is_completed(self) -> bool:
        return self._inner.is_completed()
