"""Run a whole sweep once with another version of zbench, by its command line, and return the records."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from zbench.errors import ExitCode, TrialsFailedError, UsageError
from zbench.launch.interleave import VARIABLE, InterleavedSweep, interleave
from zbench.launch.revisions import Checkouts, Version, clean_environment
from zbench.record import lines
from zbench.record.record import Record
from zbench.units import format_bytes

_MOST_SAID = 500
_END_SECONDS = 0.25
"""How long an interrupted sweep may take to end by itself: Ctrl-C reaches it, too."""

_SHARE_OF_MEMORY = 0.8
"""How much of the available memory two samples may need that are there at once."""

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


class _Sweep:
    """One `zbench sweep` of a version: started, awaited, closed."""

    def __init__(self, version: Version, command: Sequence[str], place: str, turns: Path | None) -> None:
        """place: its working directory. turns: the socket where its trials ask for turns, if they do."""
        self._version, self._command, self._place, self._turns = version, command, place, turns
        self._output, self._errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; TrialsFailedError where its interpreter is gone."""
        environment = {key: value for key, value in clean_environment().items() if key != VARIABLE}
        if self._turns is not None:
            environment[VARIABLE] = str(self._turns)
        try:
            self._process = subprocess.Popen(
                self._command, stdout=self._output, stderr=self._errors, cwd=self._place, env=environment
            )
        except OSError as error:  # it was there when the measurement began
            raise TrialsFailedError(
                f"{self._version.name} cannot be run any more: {self._version.python}: {error.strerror}; "
                "leave its environment in place until the measurement ends, and compare again"
            ) from None

    def has_ended(self) -> bool:
        """Say whether it was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def done(self) -> "_Done":
        """Wait until it has ended; return its exit status and what it printed."""
        assert self._process is not None, "it was started"
        status = self._process.wait()
        self._output.seek(0)
        self._errors.seek(0)
        return _Done(status, self._output.read(), self._errors.read())

    def close(self) -> None:
        """End it if it still runs: something interrupted this process."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()


@dataclass(frozen=True, slots=True)
class _Done:
    """How a sweep ended and what it printed."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def was_killed(self) -> bool:
        return self.status < 0


class Sampler:
    """Takes samples: each is a `zbench sweep FILE --json` of its own, with new processes for every trial.

    Each revision runs its own checkout: its sweep file, and the model and data beside it.

    Only the public command line is used, so any two versions that have it can be compared.
    """

    def __init__(
        self, file: Path, settings: Sequence[str], tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """tell: told whether the samples of a pair are taken in turns, and else why not."""
        self._checkouts, self._settings = Checkouts(file), (*settings, "run.repeats=1")
        self._tell, self._told = tell, ""
        self._seen: dict[Version, list[Record]] = {}
        self._without_turns: set[str] = set()

    def take(self, version: Version) -> list[Record]:
        """Return one repeat of every trial; UsageError or TrialsFailedError where the version cannot.

        A sample that was killed from outside is taken once more: hours of others should not be lost with it.
        """
        done = self._sweep(version)
        if done.was_killed:
            done = self._sweep(version)
        self._seen[version] = _records(version, done)
        return self._seen[version]

    def take_in_turns(self, first: Version, second: Version) -> tuple[list[Record], list[Record]] | None:
        """Return one repeat of every trial of both, whose timed steps alternated (`turns.interleave`).

        None where they cannot: both versions must have been sampled before, and have run on the CPU in a part
        of the memory that leaves room for both; and both must know turns. `first` begins.
        """
        why_not = self._why_not(first, second)
        if why_not is None:
            versions = (first, second)
            done, used = self._sweeps_in_turns(versions)
            if any(one.was_killed for one in done):
                return None
            left, right = (_records(*one) for one in zip(versions, done, strict=True))
            ended = zip(versions, (left, right), used, strict=True)
            self._without_turns = {v.name for v, sample, turns in ended if not turns and _finished(sample)}
            why_not = self._why_not(first, second)
        if why_not is None:
            self._say("the two samples of a pair are taken in turns, step by step")
            return left, right
        self._say(f"the two samples of a pair are taken one after the other: {why_not}")
        return None

    def _why_not(self, *versions: Version) -> str | None:
        """Return why these versions cannot take turns, None where they can."""
        if self._without_turns:
            return f"no trial of {' and '.join(sorted(self._without_turns))} takes turns"
        if not all(self._seen.get(version) for version in versions):
            return "what they need is not known yet"
        records = [self._seen[version] for version in versions]
        if not all(_on_cpu(record) for sample in records for record in sample):
            return "they need a GPU"
        needed, there = sum(map(_bytes_held, records)), psutil.virtual_memory().available
        if needed > _SHARE_OF_MEMORY * there:
            return f"both need {format_bytes(needed)}, and {format_bytes(there)} are available"
        return None

    def _say(self, text: str) -> None:
        """Tell what has changed."""
        if text != self._told:
            self._tell(text)
            self._told = text

    def _sweep(self, version: Version) -> _Done:
        with self._sweeping(version) as sweep:
            sweep.start()
            return sweep.done()

    def _sweeps_in_turns(self, versions: Sequence[Version]) -> tuple[list[_Done], list[bool]]:
        """Return what came of a sweep of each, and whether any trial of it took turns."""
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zbench-turns-")))
            sockets = [place / name for name in ("first", "second")]
            sweeps = [
                stack.enter_context(self._sweeping(version, socket))
                for version, socket in zip(versions, sockets, strict=True)
            ]
            gates = [
                stack.enter_context(InterleavedSweep(socket, sweep.start, sweep.has_ended))
                for socket, sweep in zip(sockets, sweeps, strict=True)
            ]
            interleave(gates)
            return [sweep.done() for sweep in sweeps], [gate.was_used for gate in gates]

    @contextmanager
    def _sweeping(self, version: Version, turns: Path | None = None) -> Iterator[_Sweep]:
        """Provide a sweep to be started; afterwards nothing of it is left."""
        file = self._checkouts.sweep_file(version)
        with tempfile.TemporaryDirectory(prefix="zbench-sample-") as scratch:
            words = [word for setting in self._settings for word in ("--set", setting)]
            # -P: a zbench directory in the working directory must not shadow the version's own
            command = [str(version.python), "-P", "-m", "zbench.cli.main", "sweep", str(file)]
            command += ["--json", "--quiet", "--output-dir", scratch, *words]
            sweep = _Sweep(version, command, scratch, turns)
            try:
                yield sweep
            finally:
                sweep.close()


def _on_cpu(record: Record) -> bool:
    """Say whether a trial's ranks used the CPU alone."""
    device = _run_key(record, "device", "auto")
    return device == "cpu" or (device == "auto" and not any(file.exists() for file in _GPU_DRIVERS))


def _finished(sample: Sequence[Record]) -> bool:
    """Say whether any trial ran to its end."""
    return any(record.outcome == "ok" for record in sample)


def _run_key(record: Record, key: str, default: Any) -> Any:
    """Return what a trial's `run` section says; another version's may lack a key."""
    return record.config.get("run", {}).get(key, default)


def _bytes_held(sample: Sequence[Record]) -> int:
    """Return the most bytes that the ranks of a trial held at once."""
    trials = [(record.memory, _run_key(record, "world_size", 1)) for record in sample]
    return max(((memory.peak_rss_bytes or 0) * ranks for memory, ranks in trials if memory), default=0)


def _records(version: Version, done: _Done) -> list[Record]:
    """Return the records that a sweep printed; UsageError or TrialsFailedError where there are none."""
    document = _document(done.stdout)
    if document is None or not document.get("trials"):
        raise _complaint(version, done, document)
    place = f"{version.name}: a record of its sweep"
    return [lines.decode(record, place) for record in document["trials"]]


def _document(stdout: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(stdout)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _complaint(
    version: Version, done: _Done, document: dict[str, Any] | None
) -> UsageError | TrialsFailedError:
    error = (document or {}).get("error") or {}
    said = (
        error.get("message")
        or done.stderr.decode(errors="replace").strip()[-_MOST_SAID:]
        or "it said nothing"
    )
    text = f"{version.name} cannot run the sweep (exit {done.status}): {said}"
    return UsageError(text) if done.status == ExitCode.USAGE else TrialsFailedError(text)
