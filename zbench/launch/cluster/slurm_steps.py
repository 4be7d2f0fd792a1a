"""Trials as job steps: within an allocation (`salloc`, `sbatch` of a script) each node has one worker step.

`srun` starts the step when a node is first used, and keeps it, so that torch is imported once on each node.
Requests and answers are sent on the step's standard streams (`multiprocessing.connection`); a step ends when
its input ends.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from zbench.children import bound
from zbench.errors import UsageError
from zbench.launch.cluster.node import (
    NodeWorker,
    address_of_node,
    joined,
    ranks_per_node,
    references_of,
    unpack,
)
from zbench.launch.cluster.places import Node, Nodes, Place, lost
from zbench.launch.cluster.slurm_jobs import SlurmOptions
from zbench.launch.executor import Attempt, Batch, OnLine, Targets, Task
from zbench.record.record import Placement
from zbench.spec.trial import TrialSpec

_SRUN = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--mem=0", "--quiet")
_ENDED, _LINE, _MEETING, _RUN, _STOP = "ended", "line", "meeting", "run", "stop"
_END_SECONDS = 10.0


def require_nodes(trials: Sequence[TrialSpec], options: SlurmOptions) -> None:
    """Raise UsageError where some trial does not fit into the allocation, or options are for jobs."""
    if options != SlurmOptions():
        raise UsageError(
            "--slurm: within an allocation trials are job steps, and settings of jobs do not apply. Give"
            " them to salloc or sbatch, set run.nodes for trials of several nodes, and write --slurm nodes=1"
        )
    there = SlurmAllocation().nodes()
    for trial in trials:
        ranks_per_node(trial, trial.run.nodes)
        if trial.run.nodes > len(there):
            raise UsageError(
                f"run.nodes: {trial.run.nodes}: the allocation has {len(there)} nodes; ask salloc or sbatch"
                " for more, or lower run.nodes"
            )


class SlurmAllocation(Nodes):
    """The nodes of the allocation that this process runs in."""

    def __init__(self) -> None:
        """Raise UsageError where SLURM does not say which nodes these are."""
        names = os.environ.get("SLURM_JOB_NODELIST", "")
        try:
            answer = subprocess.run(
                ["scontrol", "show", "hostnames", names], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(
                f"--slurm: the nodes of this allocation are not known ({error}); run this where `scontrol"
                " show hostnames` works, or unset SLURM_JOB_ID to submit jobs"
            ) from None
        cpus = int(os.environ.get("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)))
        gpus = int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
        memory = psutil.virtual_memory().available  # nodes of an allocation are taken to be alike
        self._nodes = [Node(name, name, cpus, gpus, memory) for name in answer.stdout.split()]

    def nodes(self) -> list[Node]:
        """Return all nodes of the allocation."""
        return self._nodes

    def place(self, nodes: Sequence[Node], worker: tuple[str, Targets], run_dir: Path) -> Place:
        """Return a new place; see `Nodes`."""
        return StepPlace(nodes, worker, run_dir)


class _Step:
    """The worker step on one node. `send` and `receive` never wait for its end."""

    def __init__(self, node: Node, others: Sequence[Node], worker: tuple[str, Targets]) -> None:
        """others: the nodes that this one is to be reached from. worker: as of `StepPlace`."""
        command = [sys.executable, "-P", "-m", "zbench.launch.cluster.slurm_steps"]
        theirs, to_step = Pipe(duplex=False)
        from_step, its = Pipe(duplex=False)
        self._process = subprocess.Popen(
            bound([*_SRUN, f"--nodelist={node.id}", *command]), stdin=theirs.fileno(), stdout=its.fileno()
        )
        theirs.close()
        its.close()
        self._requests, self._answers = to_step, from_step
        self.send(worker, node.id, [other.id for other in others], node.cpus)

    def send(self, *request: object) -> None:
        """Send a request; what a step that is gone is asked is lost, and its end is seen by `receive`."""
        with suppress(OSError):
            self._requests.send(request)

    def receive(self) -> Iterator[tuple[Any, ...]]:
        """Yield what it has answered; EOFError where it is gone."""
        try:
            while self._answers.poll():
                yield self._answers.recv()
        except (OSError, pickle.UnpicklingError):
            raise EOFError from None

    def close(self) -> None:
        """End the step with all that it started."""
        self._requests.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._answers.close()


class StepPlace(Place):
    """Nodes of an allocation, with a worker step on each."""

    def __init__(self, nodes: Sequence[Node], worker: tuple[str, Targets], run_dir: Path) -> None:
        """worker: the first arguments of a `NodeWorker`."""
        self.nodes = tuple(nodes)
        self._run_dir = run_dir
        self._steps = [_Step(one, [other for other in nodes if other != one], worker) for one in nodes]

    def begin(self, batch: Batch, on_line: OnLine) -> None:
        """Have every node start its ranks; see `Place`."""
        self._batch = batch
        self._on_line = on_line
        self._began = time.time()
        self._parts: dict[int, list[Attempt]] = {}
        if len(self.nodes) > 1:
            self._steps[0].send(_MEETING)
        else:
            self._start(None)

    def ended(self) -> list[Attempt] | None:
        """Return how each task ended, None while they run; see `Place`."""
        for number, step in enumerate(self._steps):
            try:
                for answer in step.receive():
                    self._take(number, *answer)
            except EOFError:
                self.is_lost = True
                return lost(self.nodes[number], "its job step ended", self._batch)
        if len(self._parts) < len(self._steps):
            return None
        where = Placement([node.name for node in self.nodes], self._began, time.time())
        return [replace(attempt, placement=where) for attempt in joined(self._parts)]

    def close(self) -> None:
        """End the steps; see `Place`."""
        for step in self._steps:
            step.close()

    def _take(self, number: int, kind: str, *contents: Any) -> None:
        """Take an answer of the step with this number."""
        if kind == _MEETING:
            self._start(*contents)
        elif kind == _ENDED:
            self._parts[number], files = contents
            unpack(files, self._run_dir)
        elif number == 0 and (reason := self._on_line(*contents)) is not None:
            for step in self._steps:
                step.send(_STOP, reason)

    def _start(self, meeting: str | None) -> None:
        references = references_of(self._batch)
        for number, step in enumerate(self._steps):
            step.send(_RUN, self._batch, number, len(self.nodes), meeting, references)


class _Requests:
    """The requests to this step, as a thread reads them; the process ends where they end."""

    def __init__(self, stream: "Connection[Any, Any]") -> None:
        self.waiting: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.reason: str | None = None
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: "Connection[Any, Any]") -> None:
        try:
            while True:
                request = stream.recv()
                if request[0] == _STOP:
                    self.reason = request[1]
                else:
                    self.waiting.put(request)
        except (EOFError, OSError):
            os._exit(0)  # the trial server ends when this process does, and ends all that it started


def main() -> None:
    """Answer the requests on stdin until they end. What anything else prints goes to stderr."""
    requests = _Requests(Connection(os.dup(0)))
    answers = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)

    def answer(*contents: object) -> None:
        answers.send_bytes(pickle.dumps(contents) + b"\n")  # SLURM passes output on when a line ends

    def on_line(task: Task, line: dict[str, Any]) -> str | None:
        answer(_LINE, task, line)
        return requests.reason

    (base_dir, targets), name, others, cpus = requests.waiting.get()
    worker = NodeWorker(base_dir, targets, address_of_node(name, others), cpus)
    while True:
        kind, *arguments = requests.waiting.get()
        if kind == _MEETING:
            answer(_MEETING, worker.meeting_point())
        else:
            requests.reason = None
            batch, number, nodes, meeting, references = arguments
            answer(_ENDED, *worker.run(batch, number, nodes, meeting, references, on_line))


if __name__ == "__main__":
    main()
