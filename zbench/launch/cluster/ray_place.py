"""Nodes that Ray gives to a command, an optional extra (`pip install "zbench[ray]"`).

Ray ends the actors when this process ends, however it ends; what an actor has started ends with it.
"""

import importlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.launch.cluster.node import NodeWorker, joined, references_of, unpack
from zbench.launch.cluster.places import Node, Place, lost
from zbench.launch.executor import Attempt, Batch, OnLine, Targets, Task
from zbench.record.record import Failure, Placement

_HELD_SECONDS = 10.0


class RayPlace(Place):
    """Nodes that Ray has given to this command whole: a placement group, with an actor on each."""

    def __init__(self, nodes: Sequence[Node], arguments: tuple[str, Targets], run_dir: Path) -> None:
        """arguments: the first ones of a `NodeWorker`."""
        self.nodes = tuple(nodes)
        self.is_lost = False
        self._run_dir = run_dir
        self._ray: Any = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        self._group = self._ray.util.placement_group(
            [{"CPU": node.cpus, **({"GPU": node.gpus} if node.gpus else {})} for node in nodes],
            strategy="STRICT_SPREAD" if len(nodes) > 1 else "STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": node.id} for node in nodes],
        )
        self._ready = self._group.ready()
        self._workers = []
        for number, node in enumerate(nodes):
            here = strategies.PlacementGroupSchedulingStrategy(self._group, number)
            options = {"num_cpus": node.cpus, "num_gpus": node.gpus, "max_concurrency": 2}
            new = self._ray.remote(NodeWorker).options(scheduling_strategy=here, **options)
            self._workers.append(new.remote(*arguments, node.address, node.cpus))

    def begin(self, batch: Batch, on_line: OnLine) -> None:
        """Have every node start its ranks; see `Place`."""
        self._batch = batch
        self._on_line = on_line
        self._began = time.time()
        self._news: Any = None
        self._reason: str | None = None
        self._parts: dict[int, list[Attempt]] = {}
        shipped = self._ray.put(references_of(batch))
        meeting = self._workers[0].meeting_point.remote() if len(self.nodes) > 1 else None
        self._running = {
            worker.run.remote(batch, number, len(self.nodes), meeting, shipped): number
            for number, worker in enumerate(self._workers)
        }

    def waits(self) -> bool:
        """Whether somebody else has held its nodes for ten seconds: then its workers are not there yet."""
        is_late = time.time() - self._began > _HELD_SECONDS
        return is_late and not self._ray.wait([self._ready], timeout=0)[0]

    def ended(self) -> list[Attempt] | None:
        """Return how each task ended, None while they run; see `Place`."""
        if len(self._batch.tasks) == 1:
            self._show_progress(self._batch.tasks[0])
        for reference in self._ray.wait([*self._running], num_returns=len(self._running), timeout=0)[0]:
            number = self._running.pop(reference)
            try:
                self._parts[number], files = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise ZbenchError(f"node {self.nodes[number].name}: {error.cause}") from None
            except self._ray.exceptions.RayError as error:
                self.is_lost = True
                return _lost(self.nodes[number], error, self._batch)
            unpack(files, self._run_dir)
        if self._running:
            return None
        where = Placement([node.name for node in self.nodes], self._began, time.time())
        attempts = [replace(attempt, placement=where) for attempt in joined(self._parts)]
        if len(attempts) > 1:
            return attempts
        self._show_news(self._batch.tasks[0])  # what was asked for
        self._news = self._workers[0].progress.remote(None)
        self._show_news(self._batch.tasks[0])  # what has come since; no question is left for the next task
        return [replace(attempts[0], seconds=where.ended - where.began)]

    def close(self) -> None:
        """End the workers with all that they started, and give the nodes back."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._ray.util.remove_placement_group(self._group)

    def _show_progress(self, task: Task) -> None:
        """Show progress lines of rank 0 that have come, end the task if there is reason to, ask for more."""
        if self._news is None or self._ray.wait([self._news], timeout=0)[0]:
            self._show_news(task)
            self._news = self._workers[0].progress.remote(self._reason)

    def _show_news(self, task: Task) -> None:
        """Show the progress lines that were asked for; wait for them."""
        with suppress(self._ray.exceptions.RayError):  # where the worker is gone, its task says why
            for line in [] if self._news is None else self._ray.get(self._news):
                self._reason = self._reason or self._on_line(task, line)


def _lost(node: Node, error: Any, batch: Batch) -> list[Attempt]:
    """Return how the tasks of a batch ended whose node is gone."""
    reason = str(error).strip().splitlines()[0]
    if type(error).__name__ == "OutOfMemoryError" or "running low on memory" in str(error):
        failure = Failure("killed", f"node {node.name} ran out of memory: {reason}")
        return [Attempt("oom", failure)] * len(batch.tasks)
    if getattr(error, "preempted", False):
        return [Attempt("crashed", Failure("killed", f"node {node.name} was preempted"))] * len(batch.tasks)
    return lost(node, reason, batch)
