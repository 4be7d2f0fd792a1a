"""The Ray executor: trials run at once on as many of a cluster's nodes as they need, each for itself.

An optional extra (`pip install "zbench[ray]"`). A place is a placement group that takes its nodes whole, with
one actor on each (`node.NodeWorker`) that starts the ranks there. Places stay until the command ends, so
that torch is imported once on each node. Ray ends the actors when this process ends, however it ends; what an
actor has started ends with it. A heat takes its turns on one node, and each node has a heat of its own.
Nothing happens in the background: all moves on while the scheduler waits in `run`, `run_heat` or `first`.
"""

import importlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.errors import TrialsFailedError, ZbenchError
from zbench.job.progress import Watch
from zbench.launch import executor
from zbench.launch.cluster.node import NodeWorker, joined, nodes_of, references_of, unpack
from zbench.launch.cluster.ray_cluster import Node, RayCluster
from zbench.launch.executor import Attempt, Executor, HeatTask, Targets, Task, names_of
from zbench.record.record import Failure, Placement

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_HELD_SECONDS = 10.0
_PATIENCE_SECONDS = 300.0
"""How long trials wait while none of them has nodes; a cluster takes minutes to replace some."""


class RayExecutor(Executor):
    """Runs tasks on the nodes of a cluster: several at once."""

    runs_ahead = True

    def __init__(
        self, run_dir: Path, base_dir: Path, cluster: RayCluster, *, targets: Targets | None = None
    ) -> None:
        """cluster: connected, and fit for the trials."""
        self._cluster, self.run_dir = cluster, run_dir.absolute()
        self._arguments = (str(base_dir.absolute()), targets or executor.DEFAULT_TARGETS)
        self._queue: deque[tuple[Task | HeatTask, Watch | None]] = deque()
        self._places, self._under_way = list[Place](), dict[Place, tuple[Task | HeatTask, Watch | None]]()
        self._ended: dict[str, list[Attempt]] = {}
        self._expected, self._lost = set[str](), set[str]()
        self._nodes, self._next_look, self._give_up = list[Node](), 0.0, math.inf
        self._has_told = False
        self.takes_turns = not any(node.gpus for node in cluster.nodes())

    def room(self, nodes: int) -> int:
        """Return how many tasks of so many nodes can run at once."""
        return max(1, len(self._there()) // nodes)

    def free_bytes(self) -> float:
        """Return the memory that Ray may give away on the node that has the least."""
        return min((node.memory for node in self._there()), default=0.0)

    def expect(self, tasks: Sequence[Task], watch: Watch | None = None) -> None:
        """Put tasks into the queue."""
        self._queue += [(task, watch) for task in tasks if not self.has_begun(task.name)]
        self._expected |= {task.name for task in tasks}

    def expect_heat(self, heat: HeatTask) -> None:
        """Put a heat into the queue; `first`, `has_begun` and `withdraw` know it by its repeats' names."""
        self._queue.append((heat, None))
        self._expected.update(names_of(heat))

    def has_begun(self, name: str) -> bool:
        """Whether a task was expected, and neither `run` nor `run_heat` has returned its end."""
        return name in self._expected

    def first(self, names: Sequence[str]) -> str:
        """Wait until one of these tasks has ended and return its name; one that was not begun goes first."""
        ready = [name for name in names if not self.has_begun(name)]
        while not ready:
            self._advance()
            ready = [name for name in names if name in self._ended]
            time.sleep(0 if ready else _POLL_SECONDS)
        return ready[0]

    def withdraw(self, names: Sequence[str]) -> list[str]:
        """Take what has not begun out of the queue; return the names of what is under way or has ended."""
        self._expected -= {name for task, _ in self._queue for name in names_of(task)}.intersection(names)
        self._queue = deque(one for one in self._queue if self.has_begun(one[0].name))
        return [name for name in names if self.has_begun(name)]

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task before all that waits, or wait for the end of one that was expected."""
        return self._end_of(task, watch)[0]

    def run_heat(self, heat: HeatTask, watch: Callable[[Task], Watch]) -> Iterator[tuple[Task, Attempt]]:
        """Run a heat before all that waits, or wait for the end of one that was expected."""
        yield from zip(heat.tasks, self._end_of(heat, None), strict=True)

    def _end_of(self, task: Task | HeatTask, watch: Watch | None) -> list[Attempt]:
        if not self.has_begun(task.name):
            self._queue.appendleft((task, watch))
        while task.name not in self._ended:
            time.sleep(_POLL_SECONDS)
            self._advance()
        self._expected.difference_update(names_of(task))
        for name in names_of(task):
            attempts = self._ended.pop(name)
        return attempts

    def close(self) -> None:
        """Give all nodes back; nothing that was started on them is left."""
        while self._places:
            self._places.pop().close()

    def _advance(self) -> None:
        """Collect what has ended, and begin what there is a place for; what lost its nodes runs once more.

        TrialsFailedError where the nodes of the next one have been missing for five minutes.
        """
        for place, (task, watch) in list(self._under_way.items()):
            attempts = place.ended()
            if attempts is None and not set(place.nodes) <= set(self._there()):  # it may never have begun
                attempts, place.is_lost = _lost(place.nodes[0], "Ray has it no more", task), True
            if attempts is not None:
                del self._under_way[place]
                if place.is_lost:
                    self._next_look = 0.0  # its nodes may be gone
                if all(attempt.was_killed for attempt in attempts) and task.name not in self._lost:
                    self._lost.add(task.name)
                    self._queue.appendleft((task, watch))
                else:
                    self._ended |= dict.fromkeys(names_of(task), attempts)
        while self._queue and (free := self._place_for(self._queue[0][0])) is not None:
            self._under_way[free] = self._queue.popleft()
            free.begin(*self._under_way[free])
        if not self._has_told and (late := [place for place in self._under_way if place.waits()]):
            self._has_told = True
            self._cluster.tell_of_wait(late[0].nodes)
        is_stuck = len(self._queue) > 0 and not self._under_way
        self._give_up = min(self._give_up, time.monotonic() + _PATIENCE_SECONDS) if is_stuck else math.inf
        if time.monotonic() > self._give_up:
            task, _ = self._queue[0]
            raise TrialsFailedError(
                f"{task.name} needs {nodes_of(task)} nodes, and for five minutes the cluster had"
                f" {len(self._there())} of this kind; add nodes and go on with --resume"
            )

    def _place_for(self, task: Task | HeatTask) -> "Place | None":
        """Return a free place with as many nodes as a task needs, None where there is none now."""
        there, wanted = self._there(), nodes_of(task)
        idle = [place for place in self._places if place not in self._under_way]
        for place in idle:
            if len(place.nodes) == wanted and not place.is_lost and set(place.nodes) <= set(there):
                return place
        taken = {node for place in self._places for node in place.nodes}
        while len(free := [node for node in there if node not in taken]) < wanted:
            if not idle:
                return None
            taken -= set(idle[0].nodes)
            self._places.remove(idle[0])
            idle.pop(0).close()
        self._places.append(Place(free[:wanted], self._arguments, self.run_dir))
        return self._places[-1]

    def _there(self) -> list[Node]:
        if time.monotonic() >= self._next_look:
            self._nodes, self._next_look = self._cluster.nodes(), time.monotonic() + _LOOK_SECONDS
        return self._nodes


class Place:
    """Nodes that Ray has given to this command whole, with a worker on each; it runs one task at a time."""

    def __init__(self, nodes: Sequence[Node], arguments: tuple[str, Targets], run_dir: Path) -> None:
        """arguments: the first ones of a `NodeWorker`."""
        self.nodes, self.is_lost, self._run_dir = tuple(nodes), False, run_dir
        self._ray: Any = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        self._group = self._ray.util.placement_group(
            [{"CPU": node.cpus, **({"GPU": node.gpus} if node.gpus else {})} for node in nodes],
            strategy="STRICT_SPREAD" if len(nodes) > 1 else "STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": node.id} for node in nodes],
        )
        self._ready, self._workers = self._group.ready(), []
        for number, node in enumerate(nodes):
            here = strategies.PlacementGroupSchedulingStrategy(self._group, number)
            options = {"num_cpus": node.cpus, "num_gpus": node.gpus, "max_concurrency": 2}
            new = self._ray.remote(NodeWorker).options(scheduling_strategy=here, **options)
            self._workers.append(new.remote(*arguments, node.address, node.cpus))

    def begin(self, task: Task | HeatTask, watch: Watch | None) -> None:
        """Have every node start its ranks."""
        self._task, self._watch, self._began = task, watch, time.time()
        self._news: Any = None
        self._reason: str | None = None
        self._parts: dict[int, list[Attempt]] = {}
        shipped = self._ray.put(references_of(task))
        meeting = self._workers[0].meeting_point.remote() if len(self.nodes) > 1 else None
        self._running = {
            worker.run.remote(task, number, len(self.nodes), meeting, shipped): number
            for number, worker in enumerate(self._workers)
        }

    def waits(self) -> bool:
        """Whether somebody else has held its nodes for ten seconds: then its workers are not there yet."""
        is_late = time.time() - self._began > _HELD_SECONDS
        return is_late and not self._ray.wait([self._ready], timeout=0)[0]

    def ended(self) -> list[Attempt] | None:
        """Return how the task ended, or each of a heat; None while it runs. Never waits."""
        if self._watch is not None:
            self._show_progress(self._watch)
        for reference in self._ray.wait([*self._running], num_returns=len(self._running), timeout=0)[0]:
            number = self._running.pop(reference)
            try:
                self._parts[number], files = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise ZbenchError(f"node {self.nodes[number].name}: {error.cause}") from None
            except self._ray.exceptions.RayError as error:
                self.is_lost = True
                return _lost(self.nodes[number], error, self._task)
            unpack(files, self._run_dir)
        if self._running:
            return None
        where = Placement([node.name for node in self.nodes], self._began, time.time())
        if isinstance(self._task, HeatTask):
            return [replace(attempt, placement=where) for attempt in self._parts[0]]
        attempt = joined([self._parts[number][0] for number in sorted(self._parts)])
        return [replace(attempt, placement=where, seconds=where.ended - where.began)]

    def close(self) -> None:
        """End the workers with all that they started, and give the nodes back."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._ray.util.remove_placement_group(self._group)

    def _show_progress(self, watch: Watch) -> None:
        """Show new progress lines of rank 0 to the watcher, and have the task ended where it says so."""
        if self._news is not None and not self._ray.wait([self._news], timeout=0)[0]:
            return
        with suppress(self._ray.exceptions.RayError):  # where the worker is gone, its task says why
            for line in [] if self._news is None else self._ray.get(self._news):
                self._reason = self._reason or watch(line)
            self._news = self._workers[0].progress.remote(self._reason)


def _lost(node: Node, error: Any, task: Task | HeatTask) -> list[Attempt]:
    """Return how a task ended whose node is gone: it says nothing about the trial, or those of a heat."""
    reason = str(error).strip().splitlines()[0]
    if type(error).__name__ == "OutOfMemoryError" or "running low on memory" in str(error):
        lost = Attempt("oom", Failure("killed", f"node {node.name} ran out of memory: {reason}"))
    else:
        how = "was preempted" if getattr(error, "preempted", False) else f"was lost: {reason}"
        lost = Attempt("crashed", Failure("killed", f"node {node.name} {how}"))
    return [lost] * (len(task.tasks) if isinstance(task, HeatTask) else 1)
