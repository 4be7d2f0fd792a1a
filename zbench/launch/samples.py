"""The samples of a paired measurement, written to a file as they are taken, so that it can be resumed.

A measurement that runs again asks for the same samples in the same order: its seed determines the orders of
its blocks, and the samples determine its decisions. So to resume it, run it again: samples come from the file
while it has any, and are then measured and appended to it.
"""

import errno
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from zbench.errors import UsageError, reason_of
from zbench.record import lines
from zbench.record.documents import (
    FIRST,
    chain,
    check_schema_version,
    checksum_of,
    linked,
    make_directory,
    parsed,
    sync_directory,
)
from zbench.record.locks import lock_file
from zbench.record.record import Record
from zbench.record.store import storage_errors
from zbench.units import format_clock

Side = Literal["base", "head"]
Sample = Sequence[Record]


class SampleTaker(Protocol):
    """What takes samples."""

    def take(self, side: Side) -> Sample:
        """Run the whole sweep once on one side, in processes of its own, and return its records."""

    def take_in_turns(self, first: Side, second: Side) -> tuple[Sample, Sample] | None:
        """Take a sample of both sides whose timed steps alternate; None where that cannot be done."""

    def remember(self, side: Side, sample: Sample) -> None:
        """Note a sample that was taken before."""


class KeptSamples:
    """The samples in the order of the requests, and how long they take. Close it at the end.

    taken: the number of samples so far, with the samples of the file. damage: which lines of the file were
    damaged and set aside, in words; empty if none was.
    """

    def __init__(
        self,
        taker: SampleTaker,
        path: Path | None,
        about: Mapping[str, Any],
        *,
        max_seconds: float = math.inf,
    ) -> None:
        """path: the file, created if missing; None for no file. about: the measurement, as JSON values.

        UsageError if the file is of another measurement, cannot be written, or another process writes it.
        """
        self.damage = ""
        self._taker = taker
        self._end = time.monotonic() + max_seconds
        self.taken, self._seconds = 0, 0.0
        self._file: BinaryIO | None = None
        self._kept: deque[dict[str, Any]] = deque()
        self._last = FIRST
        if path is not None:
            try:
                self._open(path, json.loads(json.dumps({"schema_version": 1, **about})))
            except OSError as error:
                self.close()
                raise UsageError(f"cannot keep samples in {path}: {reason_of(error)}") from None
            except BaseException:
                self.close()
                raise

    def _open(self, path: Path, about: dict[str, Any]) -> None:
        make_directory(path.parent)
        self._file = path.open("ab+", buffering=0)
        lock_file(self._file, path)
        sync_directory(path.parent)
        written = path.read_bytes()
        whole = written[: self._read(written, path)]
        if whole == b"" and b"\n" in written:
            raise UsageError(f"{path}:1: damaged line; measure again without --resume")
        first = self._kept.popleft() if self._kept else about
        check_schema_version(first, str(path))
        for key, value in about.items():
            if first.get(key) != value:
                was = f"{key} was {first.get(key)}, is {value}"
                raise UsageError(f"{path} is of another measurement: {was}; measure again without --resume")
        self._set_aside(path, len(whole), written)
        if whole == b"":
            self._add(about)

    def _read(self, written: bytes, path: Path) -> int:
        """Keep the samples of the lines up to the first one that is damaged; return where that one begins."""
        size = 0
        for link in chain(written.splitlines(keepends=True)):
            if link.checksum is None or not link.follows or not link.line.endswith(b"\n"):
                break
            self._last = link.checksum
            self._kept.append(parsed(link.line, f"{path}:{link.number}"))
            size = written.index(link.line, size) + len(link.line)
        return size

    def _set_aside(self, path: Path, size: int, written: bytes) -> None:
        """Move all after `size` bytes to a side file, but not the half line of a kill in mid-write."""
        assert self._file is not None, "it was opened"
        rest = written[size:]
        if b"\n" in rest:
            side = path.with_suffix(".damaged")
            with side.open("ab") as file:
                file.write(rest)
                file.flush()
                os.fsync(file.fileno())
            count = len(self._kept)
            place = f"{path}:{count + 2}"
            self.damage = (
                f"{place}: damaged line; it and the rest are in {side}; {count} lines before it stay"
            )
        self._file.truncate(size)

    def _add(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        data = linked(json.dumps(line), self._last)
        with storage_errors():
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        self._last = checksum_of(data)

    def close(self) -> None:
        """Let others write the file."""
        if self._file is not None:
            self._file.close()

    def take(self, side: Side) -> Sample:
        """Return the next sample, of one side."""
        (sample,) = self._next([side], lambda: (self._taker.take(side),)) or ()
        return sample

    def take_in_turns(self, first: Side, second: Side) -> tuple[Sample, Sample] | None:
        """Return the next pair, whose steps alternate; None where that cannot be done."""
        pair = self._next([first, second], lambda: self._taker.take_in_turns(first, second))
        return None if pair is None else (pair[0], pair[1])

    def _next(
        self, sides: Sequence[Side], take: Callable[[], Sequence[Sample] | None]
    ) -> Sequence[Sample] | None:
        samples: Sequence[Sample] | None
        if self._kept:
            line = self._kept.popleft()
            seconds, texts = line["seconds"], line["samples"]
            samples = texts and [[lines.decode(record, "a kept sample") for record in one] for one in texts]
            for side, sample in zip(sides, samples or (), strict=False):
                self._taker.remember(side, sample)
        else:
            began = time.monotonic()
            samples = take()
            seconds = time.monotonic() - began
            texts = samples and [[lines.jsonable(record) for record in one] for one in samples]
            self._add({"seconds": seconds, "samples": texts})
        self.taken += len(samples or ())
        self._seconds += seconds
        return samples

    def time_left(self, *samples: int) -> str:
        """Return how long the least and the most remaining samples take, in words; empty if not known."""
        times = [format_clock(self._seconds_for(count)) for count in samples if self.taken]
        return f" ({' to '.join(dict.fromkeys(times))} left)" if times else ""

    def _seconds_for(self, samples: int) -> float:
        return samples * self._seconds / self.taken if self.taken else math.nan

    def is_time_for(self, samples: int) -> bool:
        """Whether this many more samples end before the time limit."""
        is_kept = len(self._kept) > 0
        return is_kept or not time.monotonic() + self._seconds_for(samples) > self._end
