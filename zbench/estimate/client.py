"""Simulates trials in processes of their own. No torch here: the processes load it, once each."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from zbench.estimate.result import Estimate, NotSimulated, SimulationOutcome
from zbench.spec.trial import TrialSpec

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Simulator(AbstractContextManager["Simulator"]):
    """A few processes that simulate; a trial that was simulated before is answered at once."""

    def __init__(self, base_dir: Path, *, jobs: int | None = None) -> None:
        self._base_dir = base_dir
        self._jobs = jobs or max(1, len(os.sched_getaffinity(0)))
        self._idle: SimpleQueue[SimulatorProcess | None] = SimpleQueue()
        self._children: list[SimulatorProcess] = []
        self._known: dict[str, SimulationOutcome] = {}
        for _ in range(self._jobs):
            self._idle.put(None)

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.close()

    def of(self, trial: TrialSpec) -> SimulationOutcome:
        """Return what one trial needs."""
        key = trial.trial_id
        if key not in self._known:
            self._known[key] = self._asked(trial)
        return self._known[key]

    def each(self, trials: Sequence[TrialSpec]) -> Iterator[SimulationOutcome]:
        """Yield what every trial needs, in their order, several simulated at once."""
        with ThreadPoolExecutor(self._jobs) as threads:
            try:
                yield from threads.map(self.of, trials)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for child in self._children:
                    child.close()
                raise

    def _asked(self, trial: TrialSpec) -> SimulationOutcome:
        child = self._idle.get()
        try:
            if child is None:
                child = SimulatorProcess()
                self._children.append(child)
            answer = child.ask({"trial": trial.model_dump(mode="json"), "base_dir": str(self._base_dir)})
        finally:
            self._idle.put(child if child is not None and child.alive else None)
        return answer


class SimulatorProcess:
    """One process that simulates, and the pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zbench.estimate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            text=True,
        )
        self.alive = True

    def ask(self, question: dict[str, Any]) -> SimulationOutcome:
        """Return the answer; that there is none, where the process ends instead."""
        into, out = self._pipes()
        line = ""
        with suppress(OSError):
            into.write(json.dumps(question) + "\n")
            into.flush()
            line = out.readline()
        if not line:
            self.alive = False
            status = self._process.wait()
            name = signal.Signals(-status).name if status < 0 else f"status {status}"
            return NotSimulated(f"torch ended the simulation ({name})")
        answer = json.loads(line)
        if "problem" in answer:
            return NotSimulated(answer["problem"])
        return Estimate.from_json(answer["estimate"])

    def close(self) -> None:
        """End the process."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes():
            with suppress(OSError):
                pipe.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout
