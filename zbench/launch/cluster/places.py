"""An executor over nodes that it holds: batches run at once on as many places as they find, each for itself.

A place is one node, or several for one trial, with a worker on each (`node.NodeWorker`) that starts the ranks
there. Places stay until the command ends, so that torch is imported once on each node. A heat takes its turns
on one node, and each node has a heat of its own. Nothing happens in the background: all moves on while the
scheduler waits in `next_ended`.
"""

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zbench.errors import TrialsFailedError
from zbench.launch import executor
from zbench.launch.executor import Attempt, Batch, Executor, OnLine, Targets, Task, Vacancy
from zbench.record.record import Failure

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 300.0
"""How long trials wait while none of them has nodes; a cluster takes minutes to replace some."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster. memory: the bytes that trials may use there."""

    id: str
    address: str
    cpus: int
    gpus: int
    memory: float = math.inf

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.address} ({self.id[:8]})"


class Place(ABC):
    """Nodes with a worker on each; it runs one batch at a time. is_lost: whether a node is gone."""

    nodes: tuple[Node, ...]
    is_lost = False

    @abstractmethod
    def begin(self, batch: Batch, on_line: OnLine) -> None:
        """Have every node start its ranks."""

    @abstractmethod
    def ended(self) -> list[Attempt] | None:
        """Return how each task of the batch ended; None while it runs. Never waits."""

    def waits(self) -> bool:
        """Whether something else has held its nodes for long, so that its workers are not there yet."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End the workers with all that they started, and give the nodes back."""


class Nodes(ABC):
    """The nodes of one kind that trials may have."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Return those that are there now."""

    @abstractmethod
    def place(self, nodes: Sequence[Node], worker: tuple[str, Targets], run_dir: Path) -> Place:
        """Return a new place. worker: the first arguments of a `NodeWorker`."""

    def tell_of_wait(self, nodes: Sequence[Node]) -> None:
        """Tell that a trial waits for these nodes, which something else holds."""


class PlacesExecutor(Executor):
    """Runs batches on the nodes of a cluster: several at once."""

    def __init__(
        self, run_dir: Path, base_dir: Path, cluster: Nodes, *, targets: Targets | None = None
    ) -> None:
        """cluster: connected, and fit for the trials."""
        self._cluster = cluster
        self.run_dir = run_dir.absolute()
        self._worker = (str(base_dir.absolute()), targets or executor.DEFAULT_TARGETS)
        self._handles = itertools.count()
        self._queue: dict[int, tuple[Batch, OnLine]] = {}
        self._places, self._under_way = list[Place](), dict[Place, tuple[int, Batch, OnLine]]()
        self._ended: deque[tuple[int, Task, Attempt]] = deque()
        self._lost = set[int]()
        self._nodes = list[Node]()
        self._next_look = -math.inf
        self._give_up = math.inf
        self._has_told = False
        self.takes_turns = not any(node.gpus for node in cluster.nodes())

    def submit(self, batch: Batch, on_line: OnLine) -> int:
        """Put a batch into the queue; see `executor.Executor`."""
        handle = next(self._handles)
        self._queue[handle] = batch, on_line
        return handle

    def next_ended(self) -> tuple[int, Task, Attempt]:
        """Wait for the next end; see `executor.Executor`."""
        while not self._ended:
            self._advance()
            time.sleep(0 if self._ended else _POLL_SECONDS)
        return self._ended.popleft()

    def withdraw(self, handle: int) -> bool:
        """Take a batch out of the queue; see `executor.Executor`."""
        return self._queue.pop(handle, None) is not None

    def vacancy(self, nodes: int) -> Vacancy:
        """Return how many batches have nodes, and the least memory of a node."""
        memory = min((node.memory for node in self._there()), default=0.0)
        return Vacancy(max(1, len(self._there()) // nodes), memory)

    def close(self) -> None:
        """Give all nodes back; nothing that was started on them is left."""
        while self._places:
            self._places.pop().close()

    def _advance(self) -> None:
        """Collect what has ended, and begin what there is a place for; what lost its nodes runs once more.

        TrialsFailedError where the nodes of the next one have been missing for five minutes.
        """
        for place, begun in list(self._under_way.items()):
            handle, batch, on_line = begun
            attempts = place.ended()
            if attempts is None and not set(place.nodes) <= set(self._there()):  # it may never have begun
                attempts = lost(place.nodes[0], "it is not there any more", batch)
                place.is_lost = True
            if attempts is not None:
                del self._under_way[place]
                if place.is_lost:
                    self._next_look = -math.inf  # its nodes may be gone
                if all(attempt.was_killed for attempt in attempts) and handle not in self._lost:
                    self._lost.add(handle)
                    self._queue = {handle: (batch, on_line), **self._queue}
                else:
                    ends = zip(batch.tasks, attempts, strict=True)
                    self._ended.extend((handle, task, attempt) for task, attempt in ends)
        while self._queue:
            handle, (batch, on_line) = next(iter(self._queue.items()))
            if (free := self._place_for(batch)) is None:
                break
            del self._queue[handle]
            self._under_way[free] = handle, batch, on_line
            free.begin(batch, on_line)
        self._check_patience()

    def _check_patience(self) -> None:
        if not self._has_told and (late := [place for place in self._under_way if place.waits()]):
            self._has_told = True
            self._cluster.tell_of_wait(late[0].nodes)
        is_stuck = bool(self._queue) and not self._under_way
        self._give_up = min(self._give_up, time.monotonic() + _PATIENCE_SECONDS) if is_stuck else math.inf
        if time.monotonic() > self._give_up:
            batch, _ = next(iter(self._queue.values()))
            raise TrialsFailedError(
                f"{batch.name} needs {batch.nodes} nodes, and for five minutes the cluster had"
                f" {len(self._there())} of this kind; add nodes and go on with --resume"
            )

    def _place_for(self, batch: Batch) -> Place | None:
        """Return a free place with as many nodes as a batch needs, None where there is none now."""
        there = self._there()
        idle = [place for place in self._places if place not in self._under_way]
        for place in idle:
            if len(place.nodes) == batch.nodes and not place.is_lost and set(place.nodes) <= set(there):
                return place
        taken = {node for place in self._places for node in place.nodes}
        while len(free := [node for node in there if node not in taken]) < batch.nodes:
            if not idle:
                return None
            taken -= set(idle[0].nodes)
            self._places.remove(idle[0])
            idle.pop(0).close()
        self._places.append(self._cluster.place(free[: batch.nodes], self._worker, self.run_dir))
        return self._places[-1]

    def _there(self) -> list[Node]:
        if time.monotonic() >= self._next_look:
            self._nodes = self._cluster.nodes()
            self._next_look = time.monotonic() + _LOOK_SECONDS
        return self._nodes


def lost(node: Node, reason: str, batch: Batch) -> list[Attempt]:
    """Return how the tasks of a batch ended whose node is gone: it says nothing about the trials."""
    return [Attempt("crashed", Failure("killed", f"node {node.name} was lost: {reason}"))] * len(batch.tasks)
