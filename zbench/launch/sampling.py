"""Run a whole sweep once with another version of zbench, by its command line, and return the records."""

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil

from zbench import gpus
from zbench.children import bound
from zbench.errors import ExitCode, TrialsFailedError, UsageError
from zbench.launch.revisions import Checkouts, Version, clean_environment
from zbench.launch.room import Bytes, held_bytes
from zbench.launch.turns import Contender, Seat, paired_environment, run_heat
from zbench.record import lines
from zbench.record.record import Record

_LONGEST_MESSAGE = 500
_END_SECONDS = 0.25
"""How long an interrupted sweep may take to end by itself: Ctrl-C reaches it, too."""

_POLL_SECONDS = 0.1


class _Sweep(Contender):
    """One `zbench sweep` of a version. A context manager: afterwards nothing of it is left.

    seat: where its trials take their turns, if they do.
    """

    def __init__(self, version: Version, file: Path, settings: Sequence[str], seat: Seat | None) -> None:
        self._version, self.seat = version, seat
        self._scratch = tempfile.TemporaryDirectory(prefix="zbench-sample-")
        self._place = Path(self._scratch.name)
        words = [word for setting in settings for word in ("--set", setting)]
        # -P: a zbench directory in the working directory must not shadow the version's own
        self._command = [str(version.python), "-P", "-m", "zbench.cli.main", "sweep", str(file)]
        self._command += ["--json", "--quiet", "--output-dir", self._scratch.name, *words]
        self._process: subprocess.Popen[bytes] | None = None

    def advance(self) -> None:
        """Start it, or let its trial go on; return when a trial of it waits for a turn, or it has ended."""
        if self._process is None:
            self._process = self._started()
        elif self.seat is not None:
            self.seat.go()
        while self.seat is not None and not self.seat.is_taken and self._process.poll() is None:
            self.seat.receive(connection.wait(self.seat.waitable(), _POLL_SECONDS))
        if not self.waits:
            self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        """Start it; TrialsFailedError where its interpreter is gone."""
        environment = paired_environment(clean_environment(), self.seat)
        try:
            with (self._place / "out").open("wb") as out, (self._place / "err").open("wb") as err:
                return subprocess.Popen(
                    bound(self._command), stdout=out, stderr=err, cwd=self._place, env=environment
                )
        except OSError as error:  # it was there when the measurement began
            raise TrialsFailedError(
                f"{self._version.name} cannot be run any more: {self._version.python}: {error.strerror}; "
                "leave its environment in place until the measurement ends, and compare again"
            ) from None

    def was_killed(self) -> bool:
        """Wait until it has ended; say whether something outside killed it."""
        assert self._process is not None, "it was started"
        return self._process.wait() < 0

    def records(self) -> list[Record]:
        """Return the records that it printed; UsageError or TrialsFailedError where there are none."""
        assert self._process is not None, "it was started"
        status, name = self._process.wait(), self._version.name
        document: Any = None
        with suppress(ValueError):
            document = json.loads((self._place / "out").read_bytes())
        if not isinstance(document, dict):
            document = {}
        if document.get("trials"):
            return [lines.decode(record, f"{name}: a record of its sweep") for record in document["trials"]]
        last_words = (self._place / "err").read_text(errors="replace").strip()[-_LONGEST_MESSAGE:]
        reason = (document.get("error") or {}).get("message") or last_words or "it said nothing"
        text = f"{name} cannot run the sweep (exit {status}): {reason}"
        raise UsageError(text) if status == ExitCode.USAGE else TrialsFailedError(text)

    def __exit__(self, *_: object) -> None:
        """End it if it still runs: something interrupted this process."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()


class Sampler:
    """Takes samples: each is a `zbench sweep FILE --json` of its own, with new processes for every trial.

    Each revision runs its own checkout: its sweep file, and the model and data beside it. Only the public
    command line is used, so any two versions that have it can be compared.
    """

    def __init__(
        self, file: Path, settings: Sequence[str], tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """tell: told whether the samples of a pair are taken in turns, and else why not."""
        self._checkouts, self._settings = Checkouts(file), (*settings, "run.repeats=1")
        self._tell, self._last_notice = tell, ""
        self._last_samples: dict[Version, list[Record]] = {}
        self._without_turns: set[str] = set()

    def take(self, version: Version) -> list[Record]:
        """Return one repeat of every trial; UsageError or TrialsFailedError where the version cannot.

        A sample that was killed from outside is taken once more: hours of others should not be lost with it.
        """
        for is_last in (False, True):
            with self._sweep(version) as sweep:
                sweep.advance()
                if is_last or not sweep.was_killed():
                    self.remember(version, sweep.records())
                    break
        return self._last_samples[version]

    def remember(self, version: Version, sample: Sequence[Record]) -> None:
        """Note a sample of a version: what it needs decides whether it can take turns."""
        self._last_samples[version] = list(sample)

    def take_in_turns(self, first: Version, second: Version) -> tuple[list[Record], list[Record]] | None:
        """Return one repeat of every trial of both, that took turns (`run_heat`).

        None where they cannot: both versions must have been sampled before, in a part of the memory that
        leaves room for both; and both must know turns.
        """
        pair, why_not = None, self._why_not(first, second)
        if why_not is None:
            pair = self._pair(first, second)
            if pair is None:
                return None
            why_not = self._why_not(first, second)
        order = "in turns, step by step" if why_not is None else f"one after the other: {why_not}"
        notice = f"the two samples of a pair are taken {order}"
        if notice != self._last_notice:
            self._tell(notice)
            self._last_notice = notice
        return pair if why_not is None else None

    def _why_not(self, *versions: Version) -> str | None:
        """Return why these versions cannot take turns, None where they can."""
        if self._without_turns:
            return f"no trial of {' and '.join(sorted(self._without_turns))} takes turns"
        if not all(self._last_samples.get(version) for version in versions):
            return "what they need is not known yet"
        each = [_most_held(self._last_samples[version]) for version in versions]
        needed = Bytes(*map(sum, zip(*each, strict=True)))
        free = Bytes(psutil.virtual_memory().available, gpus.free_bytes() if needed.gpu else 0)
        return None if needed.fits_into(free) else f"both need {needed}, and {free} are free"

    def _sweep(self, version: Version, seat: Seat | None = None) -> _Sweep:
        return _Sweep(version, self._checkouts.sweep_file(version), self._settings, seat)

    def _pair(self, *versions: Version) -> tuple[list[Record], list[Record]] | None:
        """Return the records of two sweeps that took turns, None where one was killed from outside.

        Notes the versions of which trials ended well, and none took turns.
        """
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zbench-turns-")))
            seats = [stack.enter_context(Seat(place / str(number))) for number in range(len(versions))]
            sweeps = [
                stack.enter_context(self._sweep(version, seat))
                for version, seat in zip(versions, seats, strict=True)
            ]
            for _ in run_heat(sweeps, random.Random()):
                pass
            if any(sweep.was_killed() for sweep in sweeps):
                return None
            first, second = (sweep.records() for sweep in sweeps)
        self._without_turns = {
            version.name
            for version, sample, seat in zip(versions, (first, second), seats, strict=True)
            if not seat.was_used and any(record.outcome == "ok" for record in sample)
        }
        return first, second


def _most_held(sample: Sequence[Record]) -> Bytes:
    """Return the most that the ranks of a trial held at once, of each kind."""
    each = [held for record in sample if (held := held_bytes(record))]
    return Bytes(*map(max, zip(*each, strict=True))) if each else Bytes(0)
