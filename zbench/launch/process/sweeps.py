"""Runs whole sweeps of other versions of zbench, by their command line, as the tasks of a pair."""

import json
import subprocess
from contextlib import ExitStack, suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

from zbench.children import bound
from zbench.errors import ExitCode
from zbench.job.failures import NO_ROOM
from zbench.job.progress import Watch
from zbench.launch.executor import Attempt, SampleTask, Task
from zbench.launch.process.heats import HeatExecutor
from zbench.launch.revisions import clean_environment
from zbench.launch.turns import Participant, TurnGate, paired_environment
from zbench.record.record import Failure
from zbench.scratch import scratch_directory

_LONGEST_MESSAGE = 500
_END_SECONDS = 0.25
"""How long an interrupted sweep may take to end by itself: Ctrl-C reaches it, too."""

_POLL_SECONDS = 0.1


_STORAGE_ERRORS = ("StorageError", "ShortageError")
"""Kinds of errors, in the document of a sweep, whose cause is a disk or a limit of the machine."""


class Sweep(Participant):
    """One `zbench sweep` of a version. A context manager: afterwards nothing of it runs.

    gate: where its trials take their turns, if they do.
    """

    def __init__(self, task: SampleTask, place: Path, gate: TurnGate | None) -> None:
        """place: an empty directory, for all that it writes."""
        self._version, self._place, self.gate = task.version, place, gate
        words = [word for setting in task.settings for word in ("--set", setting)]
        # -P: a zbench directory in the working directory must not shadow the version's own
        self._command = [str(task.version.python), "-P", "-m", "zbench.cli.main", "sweep", str(task.file)]
        self._command += ["--json", "--quiet", "--output-dir", str(place), *words]
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = ""

    def advance(self) -> None:
        """Start it, or let its trial go on; return when a trial of it waits for a turn, or it has ended."""
        if self._process is None:
            try:
                self._process = self.started()
            except OSError as error:  # its interpreter was there when the measurement began
                self._gone = str(error.strerror)
                return
        elif self.gate is not None:
            self.gate.go()
        while self.gate is not None and not self.gate.all_wait and self._process.poll() is None:
            self.gate.receive(connection.wait(self.gate.waitable(), _POLL_SECONDS))
        if not self.waits:
            self._process.wait()

    def started(self) -> subprocess.Popen[bytes]:
        """Start it and return its process."""
        environment = paired_environment(clean_environment(), self.gate)
        with (self._place / "out").open("wb") as out, (self._place / "err").open("wb") as err:
            return subprocess.Popen(
                bound(self._command), stdout=out, stderr=err, cwd=self._place, env=environment
            )

    def attempt(self) -> Attempt:
        """Return the document that it printed as the result, or why there is none."""
        name, python = self._version.name, self._version.python
        if self._process is None:
            remedy = "leave its environment in place until the measurement ends, and compare again"
            return _failed("crashed", f"{name} cannot be run any more: {python}: {self._gone}; {remedy}")
        status = self._process.wait()
        document = self._document()
        error = document.get("error") or {}
        is_storage = error.get("kind") in _STORAGE_ERRORS
        if document.get("trials") and status >= 0 and not is_storage:
            return Attempt("ok", result={**document, "took_turns": self.gate and self.gate.was_used})
        last_words = (self._place / "err").read_text(errors="replace").strip()[-_LONGEST_MESSAGE:]
        reason = error.get("message") or last_words or "it said nothing"
        kind = "killed" if status < 0 else "usage" if status == ExitCode.USAGE else "crashed"
        if is_storage or any(words in reason for words in NO_ROOM):
            kind = "storage"  # of this machine, for a while: no fault of the version
        return _failed(kind, f"{name} cannot run the sweep (exit {status}): {reason}")

    def _document(self) -> dict[str, Any]:
        with suppress(ValueError):
            document = json.loads((self._place / "out").read_bytes())
            return document if isinstance(document, dict) else {}
        return {}

    def __exit__(self, *_: object) -> None:
        """End it if it still runs: something interrupted this process."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._process.kill()
            self._process.wait()


def _failed(kind: str, message: str) -> Attempt:
    return Attempt("crashed", Failure(kind, message))


class SweepsExecutor(HeatExecutor[Sweep]):
    """Runs each sample as a process of its version; two of a batch take turns, trial by trial."""

    def participant(self, task: Task, stack: ExitStack, watch: Watch, *, among: int) -> Sweep:
        """Return the sweep of a sample; see `HeatExecutor`."""
        assert isinstance(task, SampleTask), "it runs nothing else"
        place = Path(stack.enter_context(scratch_directory()))
        gate = stack.enter_context(TurnGate(place / "gate")) if among > 1 else None
        return stack.enter_context(Sweep(task, place, gate))

    def attempt(self, task: Task, participant: Sweep) -> Attempt:
        """Return how a sample ended: its result is the document that the sweep printed."""
        return participant.attempt()
