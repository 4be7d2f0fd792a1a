"""Check that all ranks make the same collective calls; where they do not, the error names each rank's call.

Every call has a `Tag`. Ranks of one host exchange (number, code) with each call. Sockets receive a message
only in the call that it was sent in, and a rank that waits for longer than `PATIENCE` seconds posts for what.
Whatever the backend (NCCL checks nothing), ranks compare a rolling hash of their calls in the step's own
collective. The words of an error go through the process group's store: after a disagreement no collective
works.
"""

import atexit
import json
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from threading import Event, Lock, Thread
from typing import Any

from torch._C._distributed_c10d import Store

from zbench.engine.protocols import Tag, Work
from zbench.errors import RanksDisagreeError

REDUCTIONS, GATHERS = "reduces", "gathers"
CHANNELS = (REDUCTIONS, GATHERS)
_REMEDY = (
    "make every rank call the same modules, and read the same weights, in the same order; at stage 3, name"
    " modules that route to experts in leaf_modules"
)
PATIENCE = 5.0
"""Seconds after which a waiting rank tells the others which call it waits for."""
_SECONDS_TO_HEAR = 5.0
_REMEMBERED = 256  # calls of each channel that can be named
_MASK = (1 << 48) - 1  # a float64 holds it exactly


class OtherCallError(RuntimeError):
    """Another rank is in another call; `Agreement.failed` returns the error that names it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call of this rank: its number within its channel, and what it is for."""

    channel: str
    number: int
    code: int
    what: str

    def check(self, number: int, code: int) -> None:
        """Raise OtherCallError unless the rank that sent this is in the same call."""
        if (number, code) != (self.number, self.code):
            raise OtherCallError

    def __str__(self) -> str:
        return f"{self.channel} {self.what} (call {self.number})"


class Board:
    """Texts that each rank writes for the others; `store` is None in a world of one rank. lost: the rank that
    serves the store has left.
    """

    def __init__(self, rank: int, world_size: int, store: Store | None) -> None:
        self._rank, self._world_size, self._store = rank, world_size, store
        self.lost = False

    def write(self, topic: str, text: str) -> None:
        """Let the others read `text`."""
        with self._unless_lost():
            if self._store is not None:
                self._store.set(f"{topic}/{self._rank}", text)

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            self._store, self.lost = None, True

    def read(self, topic: str, seconds: float) -> dict[int, str]:
        """Return the texts of the ranks that wrote one within `seconds`, by rank."""
        texts: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        while self._store is not None:
            with self._unless_lost():
                for rank in set(range(self._world_size)) - texts.keys():
                    if self._store.check([f"{topic}/{rank}"]):
                        texts[rank] = self._store.get(f"{topic}/{rank}").decode()
            if len(texts) == self._world_size or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return dict(sorted(texts.items()))


class Agreement:
    """The collective calls of this rank, compared with those of the other ranks.

    `look` detects that every rank waits for a call that another one has not made.
    """

    def __init__(
        self, rank: int, world_size: int, store: Store | None = None, end: Callable[[], None] = lambda: None
    ) -> None:
        """end: disconnects this rank, so that ranks that wait for it fail."""
        self._rank, self._world_size, self._end = rank, world_size, end
        self._board = Board(rank, world_size, store)
        self._count = dict.fromkeys(CHANNELS, 0)
        self._hash = dict.fromkeys(CHANNELS, 0)
        self._latest = {channel: deque[Call](maxlen=_REMEMBERED) for channel in CHANNELS}
        self._meetings = self._errors = 0
        self._posted = ""
        self._ended: Exception | None = None
        self._lock = Lock()
        _AGREEMENTS.add(self)
        self.waiting: tuple[Call, float] | None = None

    def note(self, channel: str, tag: Tag, size: int) -> Call:
        """Count a call of `channel` that moves `size` bytes, and return it."""
        self.check_going_on()
        if self._posted:
            self._tell_error("")
        self._count[channel] += 1
        call = Call(channel, self._count[channel], (tag.code * 31 + size) & 0xFFFFFFFF, tag.what)
        self._hash[channel] = (self._hash[channel] * 1000003 + call.code) & _MASK
        self._latest[channel].append(call)
        return call

    def check_going_on(self) -> None:
        """Raise the error of an earlier call that failed; no later call can succeed."""
        if self._ended is not None:
            raise self._ended

    def digest(self) -> list[float]:
        """Return the rolling hash of each channel: equal on ranks that made the same calls."""
        return [float(self._hash[channel]) for channel in CHANNELS]

    def failed(self, call: Call, error: Exception) -> Exception:
        """Return the error of a call that failed: the disagreement, if ranks are in different calls.

        Later calls fail with the same error.
        """
        with self._lock:
            if self._ended is None:
                self._board.write("ended", str(call))
                self._end()
                raised = self._raised_elsewhere(call)
                texts = {} if raised else self._board.read("ended", _SECONDS_TO_HEAR)
                if raised is None and not isinstance(error, OtherCallError):
                    raised = self._left(call, texts)
                self._ended = raised or (_disagreement(texts) if len(set(texts.values())) > 1 else error)
            return self._ended

    def _left(self, call: Call, texts: Mapping[int, str]) -> Exception | None:
        """Return the error of ranks that have left: the others have written why their own calls ended."""
        gone = ", ".join(str(rank) for rank in range(self._world_size) if rank not in texts)
        if not gone:
            return None
        who = "the rank that serves the process group's store (0, as a rule)" if self._board.lost else gone
        earlier = [str(c) for c in self._latest[call.channel] if c.number < call.number]
        return RanksDisagreeError(
            f"rank {who} has left: it ended, was killed, or closed its engine; its last such call:"
            f" {earlier[-1] if earlier else 'none'} (this rank {call}); see what that rank has printed"
        )

    def leave(self, why: str) -> None:
        """Say to ranks that wait for this one that it makes no more calls, unless it has said so."""
        if self._ended is None and not self._posted:
            self._errors += 1
            self._tell_error(why)

    def look(self, patience: float) -> bool:
        """Return whether this rank has waited for `patience` seconds, and all wait for calls that some rank
        has not made, or one has raised an error; disconnect it then.
        """
        if (waiting := self.waiting) is None or time.monotonic() - waiting[1] < patience:
            return False
        call = waiting[0]
        codes = {
            channel: [(c.number, c.code) for c in list(calls)] for channel, calls in self._latest.items()
        }
        self._board.write("waiting", json.dumps([call.channel, call.number, call.code, self._count, codes]))
        posts = [json.loads(text) for text in self._board.read("waiting", 0.0).values()]
        stuck = len(posts) == self._world_size and all(_is_blocked(post, posts) for post in posts)
        if not stuck and self._raised_elsewhere(call) is None:
            return False
        self.failed(call, OtherCallError("ranks wait for one another"))
        return True

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Post an error that is raised inside, for ranks that wait for this one."""
        try:
            yield
        except BaseException as error:
            self._errors += 1
            self._tell_error(f"{type(error).__name__}: {error}")
            raise

    def _tell_error(self, text: str) -> None:
        self._posted = text
        self._board.write("raised", json.dumps([text, self._errors, self._count]))

    def _raised_elsewhere(self, call: Call) -> Exception | None:
        """Return the error of a rank that raised one where this rank did not, and has not made `call`."""
        for rank, text in self._board.read("raised", 0.0).items():
            error, errors, count = json.loads(text)
            if error and errors > self._errors and count[call.channel] < call.number:
                return RanksDisagreeError(f"rank {rank} has stopped: {error} (this rank {call})")
        return None

    def differing(self) -> RanksDisagreeError:
        """Return the error of ranks whose digests differ, with the first calls that do. All ranks call it."""
        calls = [str(call) for channel in CHANNELS for call in self._latest[channel]]
        lines = {rank: text.split("\n") for rank, text in self.meet("\n".join(calls)).items()}
        rows = zip_longest(*lines.values(), fillvalue="no further call")
        first = next((row for row in rows if len(set(row)) > 1), ("a call that is no longer known",))
        return _disagreement(dict(zip(lines, first, strict=False)))

    def meet(self, text: str) -> dict[int, str]:
        """Return every rank's text. All ranks call it after one of them has reported a disagreement."""
        self._meetings += 1
        topic = f"meeting/{self._meetings}"
        self._board.write(topic, text)
        return {self._rank: text, **self._board.read(topic, _SECONDS_TO_HEAR)}


_AGREEMENTS: "weakref.WeakSet[Agreement]" = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    error = getattr(sys, "last_value", None)
    for agreement in list(_AGREEMENTS):
        agreement.leave("its process has ended" if error is None else f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class Attended:
    """A collective's work; while this rank waits for it, `look` can report which call it waits for."""

    work: Work
    call: Call
    agreement: Agreement

    def wait(self) -> None:
        """Return when its result may be read."""
        self.agreement.check_going_on()
        self.agreement.waiting = self.call, time.monotonic()
        try:
            self.work.wait()
        except OtherCallError as error:
            raise self.agreement.failed(self.call, error) from error
        finally:
            self.agreement.waiting = None

    def is_completed(self) -> bool:
        return self.work.is_completed()


class Watch:
    """A thread that calls `look` while this rank waits, until `close` or until the agreement is freed."""

    def __init__(self, agreement: Agreement) -> None:
        self._stop = Event()
        arguments = weakref.ref(agreement), self._stop
        Thread(target=_watch, args=arguments, name="zbench agreement", daemon=True).start()

    def close(self) -> None:
        """Let the thread end."""
        self._stop.set()

    __del__ = close


def _watch(reference: "weakref.ref[Agreement]", stop: Event) -> None:
    while not stop.wait(PATIENCE / 5):
        agreement = reference()
        if agreement is None or agreement.look(PATIENCE):
            return
        del agreement


def _is_blocked(post: Sequence[Any], posts: Sequence[Sequence[Any]]) -> bool:
    """Whether some rank has not made the call that the rank of `post` waits for, or made another instead."""
    channel, number, code, *_ = post
    return any(
        counts[channel] < number or dict(codes[channel]).get(number, code) != code
        for *_, counts, codes in posts
    )


def _disagreement(texts: Mapping[int, str]) -> RanksDisagreeError:
    calls = ", ".join(f"rank {rank} {text}" for rank, text in texts.items())
    return RanksDisagreeError(f"expected the same collective calls on every rank, got {calls}; {_REMEDY}")
