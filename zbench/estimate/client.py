"""Simulates trials in child processes, which import torch. This module does not import it."""

import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from zbench.children import watch_parent
from zbench.estimate.result import NotSimulated, SimulationOutcome
from zbench.job.calling import private_caches
from zbench.spec.trial import TrialSpec

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Simulator(AbstractContextManager["Simulator"]):
    """A pool of processes that simulate trials. Outcomes are cached by trial ID."""

    def __init__(self, base_dir: Path, *, jobs: int | None = None) -> None:
        self._base_dir = base_dir
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._idle: SimpleQueue[SimulatorProcess | None] = SimpleQueue()
        self._children: list[SimulatorProcess] = []
        self._known: dict[str, SimulationOutcome] = {}
        for _ in range(self._jobs):
            self._idle.put(None)

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.close()

    def of(self, trial: TrialSpec) -> SimulationOutcome:
        """Return the outcome of one trial."""
        key = trial.trial_id
        if key not in self._known:
            self._known[key] = self._asked(trial)
        return self._known[key]

    def each(self, trials: Sequence[TrialSpec]) -> Iterator[SimulationOutcome]:
        """Yield the outcomes of the trials in their order; several are simulated at the same time."""
        with ThreadPoolExecutor(self._jobs) as threads:
            try:
                yield from threads.map(self.of, trials)
            except BaseException:
                self.__exit__()  # otherwise the pool waits for running simulations
                raise

    def _asked(self, trial: TrialSpec) -> SimulationOutcome:
        child = self._idle.get()
        try:
            if child is None:
                child = SimulatorProcess()
                self._children.append(child)
            return child.ask(trial, self._base_dir)
        finally:
            self._idle.put(child if child is not None and child.alive else None)


class SimulatorProcess:
    """One process that simulates trials, and the pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from zbench.estimate.client import serve; serve({os.getpid()})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
        )
        self.alive = True

    def ask(self, trial: TrialSpec, base_dir: Path) -> SimulationOutcome:
        """Return the outcome of a trial; NotSimulated if the process ends."""
        into, out = self._pipes()
        try:
            pickle.dump((trial, base_dir), into)
            into.flush()
            outcome: SimulationOutcome = pickle.load(out)
        except (EOFError, OSError):
            self.alive = False
            status = self._process.wait()
            name = signal.Signals(-status).name if status < 0 else f"status {status}"
            return NotSimulated(f"torch ended the simulation ({name})")
        return outcome

    def close(self) -> None:
        """End the process."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes():
            with suppress(OSError):
                pipe.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def serve(parent: int) -> None:
    """Run the loop of such a process until stdin, or the parent, ends. Output of the user's model goes to
    stderr.
    """
    watch_parent(parent)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()  # collect after each simulation only: a collection during a step would change its peak
    private_caches()  # before torch is imported, which makes its own folder in a shared place
    from zbench.estimate.reading import answer

    with suppress(EOFError):
        while True:
            pickle.dump(answer(*pickle.load(sys.stdin.buffer)), answers)
            answers.flush()
            gc.collect()
