"""Counts what a step launches and what its host waits for: collectives, operators, gathers, copies."""

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.gradients.norm import SUMMARY
from zbench.engine.parameters.sharded import WEIGHTS
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.transport.buffers import storage_of
from zbench.estimate.counting import moves_bytes
from zbench.estimate.ledger import BUCKETS, GRADIENTS, AllocationLedger, tensors_of
from zbench.estimate.result import StepLaunches
from zbench.measure.traffic import CountingCollectives, TrafficMeter
from zbench.record.record import Traffic

_ATEN = torch.ops.aten
_COPIES = frozenset({_ATEN.copy_.default, _ATEN.add_.Tensor})
_READS = frozenset({_ATEN._local_scalar_dense.default, _ATEN.equal.default})
_SUMS = (BUCKETS, GRADIENTS)
_COLLECTIVES = {
    "alltoall_base_": "all_to_all",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
}
"""c10d's operators, which carry their process group."""


class StepCounter:
    """Counts what one step of a rank launches and waits for, on a `ledger`.

    per_node: ranks of a node. is_card: the host waits for a device.
    """

    def __init__(self, ledger: AllocationLedger, per_node: int, *, is_card: bool) -> None:
        self._ledger, self._per_node, self._is_card = ledger, per_node, is_card
        self._read: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self._collectives: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._launches = self._gradient_copies = self._norm = 0
        self._calls = self._exposed = self.computed = 0
        self._leaving, self.host_waits = 0.0, 0

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count one operator."""
        if func.namespace == "c10d":
            self._note_collective(func, args)
            return
        tensors = [*tensors_of((args, kwargs))]
        if tensors and all(map(self._is_on_host, tensors)):
            for result in tensors_of(out):
                self._have_read(result)
        elif func in _READS:
            self.host_waits += self._is_card
        elif moves_bytes(func):
            self._launches += 1
            self.computed += func is not _ATEN.copy_.default
            self._gradient_copies += func in _COPIES and self._takes_gradient(*args[:2])

    def _takes_gradient(self, target: Tensor, source: Tensor) -> bool:
        """Return whether memory of the engine's for gradients is written from autograd's."""
        return self._ledger.held_as(target) in _SUMS and self._ledger.held_as(source) not in _SUMS

    def _note_collective(self, func: Any, args: Any) -> None:
        name = _COLLECTIVES.get(func._overloadpacket.__name__)
        if name is None:
            return
        group = next(dist.ProcessGroup.unbox(x) for x in args if _is_group(x))
        nbytes = max(x.nbytes for x in tensors_of(args))
        self._collectives[name] += 1
        self._bytes[name] += nbytes
        ranks = dist.get_process_group_ranks(group)
        self._sent[name] += sent_in_a_ring(name, nbytes, len(ranks))
        self._leaving += leaving_a_node(name, nbytes, ranks, self._per_node)

    def to_host(self, tensor: Tensor) -> Tensor:
        """Count that the host waits for the values of a tensor, and return them."""
        if not self._is_on_host(tensor):
            self.host_waits += 1
            self._have_read(tensor)
        return tensor

    def _have_read(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._read[key] = weakref.ref(storage, lambda _: self._read.pop(key, None))

    def _is_on_host(self, tensor: Tensor) -> bool:
        return storage_of(tensor) in self._read or self._ledger.is_offloaded(tensor)

    def note_norm(self, nbytes: int) -> None:
        """Count what this rank sends for the norm."""
        self._norm += nbytes

    def note_gather(self, *, exposed: bool) -> None:
        """Count a gather of weights that has been waited for. exposed: nothing was computed meanwhile."""
        self._calls += 1
        self._exposed += exposed

    def take(self, traffic: Mapping[str, Traffic]) -> StepLaunches:
        """Return the counts of the step. traffic: what was asked of a transport that is not c10d's."""
        asked = {name: {"calls": t.calls, "bytes": t.bytes} for name, t in traffic.items()}
        launched = {
            name: {"calls": n, "bytes": self._bytes[name], "sent": self._sent[name]}
            for name, n in self._collectives.items()
        }
        return StepLaunches(
            collectives=launched or asked,
            launches=self._launches,
            gradient_copies=self._gradient_copies,
            gathers={"calls": self._calls, "exposed": self._exposed},
            inter_node_bytes=round(self._leaving),
            norm_bytes=self._norm,
            host_waits=self.host_waits,
        )


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and str(value._type()).endswith(".ProcessGroup")


def sent_in_a_ring(name: str, nbytes: int, ranks: int) -> int:
    """Return the bytes that each rank sends, and receives, in a collective of `nbytes` a rank."""
    return (2 if name == "all_reduce" else 1) * nbytes * (ranks - 1) // ranks


def leaving_a_node(name: str, nbytes: int, ranks: list[int], per_node: int) -> float:
    """Return the bytes that leave one node in a collective of `nbytes` a rank, from all its ranks.

    An all-to-all sends a part to each rank. The others are counted as rings, the least that a backend sends:
    of the ring, one rank of a node has its neighbour on another node.
    """
    here = ranks[0] // per_node
    inside = sum(rank // per_node == here for rank in ranks)
    if inside == len(ranks):
        return 0.0
    groups = per_node / inside
    if name == "all_to_all":
        return groups * inside * nbytes * (len(ranks) - inside) / len(ranks)
    if name == "broadcast":
        return groups * nbytes
    rounds = 2 if name == "all_reduce" else 1
    return groups * rounds * nbytes * (len(ranks) - 1) / len(ranks)


class WatchedCollectives(CountingCollectives):
    """Collectives that count gathers of weights and the norm's messages into a counter, too."""

    def __init__(self, inner: Collectives, meter: TrafficMeter, counter: StepCounter) -> None:
        super().__init__(inner, meter)
        self._counter = counter

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        work = super().all_gather(flat, tag)
        return Gather(work, self._counter, self._counter.computed) if tag.topic.startswith(WEIGHTS) else work

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        self._counter.note_norm(words.nbytes if tag == SUMMARY else 0)
        return super().add_up(words, tag)


@dataclass(slots=True)
class Gather:
    """A gather of weights. began: what had been computed when it was launched; -1 once it is waited for."""

    work: Work
    counter: StepCounter
    began: int

    def wait(self) -> None:
        if self.began >= 0:
            self.counter.note_gather(exposed=self.began == self.counter.computed)
            self.began = -1
        self.work.wait()

    def is_completed(self) -> bool:
        return self.work.is_completed()
