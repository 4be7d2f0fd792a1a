"""Check that all ranks make the same collective calls; where they do not, the error names each rank's call.

Every call has a `Tag`. Ranks of one host exchange (number, code) with each call. Sockets receive a message
only in the call that it was sent in, and a rank that waits for longer than `PATIENCE` seconds posts for what.
Whatever the backend (NCCL checks nothing), ranks compare a rolling hash of their calls in the step's own
collective. The words of an error go through the process group's store: after a disagreement no collective
works.

On a device a wait only orders the stream, and the host blocks later, wherever it reads. So there the thread
that watches asks how far the stream has come behind the last wait. Where that cannot end, it aborts the
communicators, which lets the stream run on, and every later call of the engine raises.
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
from threading import Lock, get_ident
from typing import Any, Protocol

from torch._C._distributed_c10d import Store

from zbench import clocks
from zbench.engine.protocols import Tag
from zbench.engine.transport.neighbours import Neighbour
from zbench.engine.transport.rank_messages import OwnProcess, RankMessages
from zbench.errors import RanksDisagreeError

REDUCTIONS, GATHERS = "reduces", "gathers"
CHANNELS = (REDUCTIONS, GATHERS)
_REMEDY = (
    "make every rank call the same modules, and read the same weights, in the same order; at stage 3, name"
    " modules that route to experts in leaf_modules"
)
_SEE = "see what that rank has printed"
PATIENCE = 3.0
"""Seconds after which a waiting rank tells the others which call it waits for; it may be short, as a slow
rank is never taken for stuck. Two looks and `_SECONDS_TO_HEAR` follow: all have raised within 10 seconds.
"""
_SECONDS_TO_HEAR = 5.0
_POLL = 1e-4  # seconds between two questions whether a device has got somewhere
_REMEMBERED = 256  # calls of each channel that can be named
_MASK = (1 << 48) - 1  # a float64 holds it exactly


class OtherCallError(RuntimeError):
    """Another rank is in another call; `Agreement.failed` returns the error that names it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call of this rank: its number within its channel, what it is for, and its bytes."""

    channel: str
    number: int
    code: int
    topic: str
    size: int = 0

    def check(self, number: int, code: int) -> None:
        """Raise OtherCallError unless the rank that sent this is in the same call."""
        if (number, code) != (self.number, self.code):
            raise OtherCallError

    def __str__(self) -> str:
        return f"{self.channel} {self.topic} (call {self.number})"


class StreamPlace(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the device has got there."""


class StreamDevice(Protocol):
    """What runs collectives behind the host's back."""

    def enter(self) -> None:
        """Have this thread use the device; one that does not would use the first of the machine."""

    def stream(self) -> Any:
        """Return the current stream of this thread."""

    def place(self, stream: Any) -> StreamPlace:
        """Return the present end of a stream."""


class Agreement:
    """The collective calls of this rank, compared with those of the other ranks.

    `look` detects that every rank waits for a call that another one has not made.
    """

    def __init__(
        self, rank: int, world_size: int, store: Store | None = None, end: Callable[[], None] = lambda: None
    ) -> None:
        """end: disconnects this rank, so that ranks that wait for it fail."""
        self._rank, self._world_size, self._end = rank, world_size, end
        self.process = OwnProcess(rank)
        self._messages = RankMessages(rank, world_size, store, self.process)
        self._count = dict.fromkeys(CHANNELS, 0)
        self._hash = dict.fromkeys(CHANNELS, 0)
        self._latest = {channel: deque[Call](maxlen=_REMEMBERED) for channel in CHANNELS}
        self._meetings = self._errors = 0
        self._posted = ""
        self._ended: Exception | None = None
        self._is_ending = False
        self._lock = Lock()
        _AGREEMENTS.add(self)
        self.waits: dict[int, tuple[Call, float]] = {}  # of each thread that waits: for what, since when
        self._waited: dict[str, Call] = {}
        self._probe: tuple[Call, float, StreamPlace] | None = None
        self._behind: tuple[Call, Any] | None = None
        self.device: StreamDevice | None = None
        self.neighbour: Neighbour | None = None
        self.joined: list[Agreement] = []

    def note(self, channel: str, tag: Tag, size: int) -> Call:
        """Count a call of `channel` that moves `size` bytes, and return it."""
        self.check_going_on()
        if self._posted:
            self._tell_error("")
        self._count[channel] += 1
        call = Call(channel, self._count[channel], (tag.code * 31 + size) & 0xFFFFFFFF, tag.topic, size)
        self._hash[channel] = (self._hash[channel] * 1000003 + call.code) & _MASK
        self._latest[channel].append(call)
        return call

    def check_going_on(self) -> None:
        """Raise the error of an earlier call that failed; no later call can succeed. UsageError in a fork."""
        self.process.check()
        if self._is_ending:
            with self._lock:  # until it is known why
                assert self._ended is not None
                raise self._ended

    @contextmanager
    def waits_for(self, call: Call) -> Iterator[None]:
        """Note that this rank waits for a call in the block, or that the current stream does behind it."""
        self.check_going_on()
        self._waited[call.channel] = call
        self.waits[get_ident()] = call, clocks.monotonic()
        try:
            yield
        finally:
            del self.waits[get_ident()]
        if self.device is not None:
            self._behind = call, self.device.stream()

    def attend(self) -> None:
        """Return when the device has done what the current stream waits for; raise where it never will."""
        if self.device is not None:
            place = self.device.place(self.device.stream())
            while not place.query():
                self.check_going_on()
                time.sleep(_POLL)
        self.check_going_on()

    def digest(self) -> list[float]:
        """Return the rolling hash of each channel: equal on ranks that made the same calls."""
        return [float(self._hash[channel]) for channel in CHANNELS]

    def failed(self, call: Call, error: Exception) -> Exception:
        """Return the error of a call that failed: the disagreement, if ranks are in different calls.

        Later calls fail with the same error.
        """
        with self._lock:
            if self._ended is None:
                self._is_ending = True
                self._messages.write("heard", "")
                self._messages.write("ended", json.dumps([str(call), self._remembered()]))
                self._end()
                raised = self._raised_elsewhere(call)
                texts = {} if raised else self._messages.read("ended", _SECONDS_TO_HEAR)
                if raised is None and (self._messages.lost or not isinstance(error, OtherCallError)):
                    raised = self._left(call, texts)
                ends = {rank: json.loads(text) for rank, text in texts.items()}
                self._ended = raised or _difference(ends) or _other_than(error, call)
        for other in self.joined:
            other.end_with(self._ended)
        return self._ended

    def end_with(self, error: Exception) -> None:
        """End because another communicator of the same engine has ended."""
        with self._lock:
            if self._ended is None:
                self._ended, self._is_ending = error, True
                self._messages.write("heard", "")
                self._end()

    def _remembered(self) -> list[list[str]]:
        return [
            [f"{call} of {call.size} bytes" for call in list(self._latest[channel])] for channel in CHANNELS
        ]

    def _left(self, call: Call, texts: Mapping[int, str]) -> Exception | None:
        """Return the error of ranks that have left: the others have written why their own calls ended."""
        gone = ", ".join(str(rank) for rank in range(self._world_size) if rank not in texts)
        if not gone:
            return None
        who = "the rank that serves the process group's store (0, as a rule)" if self._messages.lost else gone
        earlier = [str(c) for c in self._latest[call.channel] if c.number < call.number]
        return RanksDisagreeError(
            f"rank {who} has left: it ended, was killed, or closed its engine; its last such call:"
            f" {earlier[-1] if earlier else 'none'} (this rank {call}); {_SEE}"
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
        waiting = min(list(self.waits.values()), key=lambda w: w[1], default=None) or self._unreached()
        if waiting is None or clocks.monotonic() - waiting[1] < patience:
            return False
        call = waiting[0]
        codes = {
            channel: [(c.number, c.code) for c in list(calls)] for channel, calls in self._latest.items()
        }
        self._messages.write("waiting", json.dumps([self._awaited(call), self._count, codes]))
        posts = [json.loads(text) for text in self._messages.read("waiting", 0.0).values()]
        stuck = len(posts) == self._world_size and all(_is_blocked(post, posts) for post in posts)
        if not stuck and not self._messages.lost and self._raised_elsewhere(call) is None:
            return False
        self.failed(call, OtherCallError("ranks wait for one another"))
        return True

    def _unreached(self) -> tuple[Call, float] | None:
        """Return the last call that a stream waited for when it was asked, and since when it has not got
        there. Only the thread that watches asks.
        """
        if self.device is None or self._behind is None:
            return None
        if self._probe is not None and self._probe[2].query():
            self._probe = None
        if self._probe is None:
            call, stream = self._behind
            place = self.device.place(stream)
            if place.query():
                return None
            self._probe = call, clocks.monotonic(), place
        return self._probe[:2]

    def _awaited(self, call: Call) -> dict[str, int]:
        """Return the number of the last call of each channel that this rank has waited for."""
        return {channel: one.number for channel, one in self._waited.items()} | {call.channel: call.number}

    def tell_gone(self, rank: int) -> None:
        """Say to the others that another rank's process has ended, unless it has said so itself, or has left
        because it heard of an error.
        """
        message = self._messages.read("raised", 0.0).get(rank)
        if not (message and json.loads(message)[0]) and rank not in self._messages.read("heard", 0.0):
            self._messages.write("gone", str(rank))

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
        self._messages.write("raised", json.dumps([text, self._errors, self._count]))
        for other in self.joined:
            other.tell_alike(text, self._errors)

    def tell_alike(self, text: str, errors: int) -> None:
        """Post what the other communicator of the same engine has posted."""
        self._posted, self._errors = text, errors
        self._messages.write("raised", json.dumps([text, errors, self._count]))

    def _raised_elsewhere(self, call: Call) -> Exception | None:
        """Return the error of a rank that raised one where this rank did not, and has not made `call`."""
        for rank, text in self._messages.read("raised", 0.0).items():
            error, errors, count = json.loads(text)
            behind = any(count[channel] < number for channel, number in self._awaited(call).items())
            if error and errors > self._errors and behind:
                return RanksDisagreeError(f"rank {rank} has stopped: {error} (this rank {call})")
        gone = ", ".join(sorted(set(self._messages.read("gone", 0.0).values())))
        if not gone:
            return None
        return RanksDisagreeError(f"rank {gone} has left: its process has ended (this rank {call}); {_SEE}")

    def differing(self) -> RanksDisagreeError:
        """Return the error of ranks whose digests differ, with the first calls that do. All ranks call it."""
        texts = self.meet(json.dumps(self._remembered()))
        calls = {rank: json.loads(text) for rank, text in texts.items()}
        return _first_difference(calls) or _disagreement(
            dict.fromkeys(texts, "a call that is no longer known")
        )

    def meet(self, text: str) -> dict[int, str]:
        """Return every rank's text. All ranks call it after one of them has reported a disagreement."""
        self._meetings += 1
        topic = f"meeting/{self._meetings}"
        self._messages.write(topic, text)
        return {self._rank: text, **self._messages.read(topic, _SECONDS_TO_HEAR)}


_AGREEMENTS: "weakref.WeakSet[Agreement]" = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    error = getattr(sys, "last_value", None)
    for agreement in list(_AGREEMENTS):
        agreement.leave("its process has ended" if error is None else f"{type(error).__name__}: {error}")


def _is_blocked(post: Sequence[Any], posts: Sequence[Sequence[Any]]) -> bool:
    """Whether some rank has not made a call that the rank of `post` waits for, or made another instead."""
    awaited, _, own_codes = post
    for channel, last in awaited.items():
        expected = {number: code for number, code in own_codes[channel] if number <= last}
        for _, counts, codes in posts:
            made = dict(codes[channel])
            if counts[channel] < last or any(made.get(n, code) != code for n, code in expected.items()):
                return True
    return False


def _other_than(error: Exception, call: Call) -> Exception:
    """Return the error of a call that failed, in words where it has none."""
    if not isinstance(error, OtherCallError):
        return error
    return RanksDisagreeError(
        f"ranks wait for one another, for a reason that none has told (this rank {call})"
    )


def _difference(ends: Mapping[int, Sequence[Any]]) -> RanksDisagreeError | None:
    """Return the error of ranks that waited for unlike calls, or had made unlike ones before."""
    waits = {rank: call for rank, (call, _) in ends.items()}
    if len(set(waits.values())) > 1:
        return _disagreement(waits)
    return _first_difference({rank: calls for rank, (_, calls) in ends.items()})


def _first_difference(calls: Mapping[int, Sequence[Sequence[str]]]) -> RanksDisagreeError | None:
    for of_ranks in zip(*calls.values(), strict=True):  # one channel after the other
        for row in zip_longest(*of_ranks, fillvalue="no further call"):
            if len(set(row)) > 1:
                return _disagreement(dict(zip(calls, row, strict=True)))
    return None


def _disagreement(texts: Mapping[int, str]) -> RanksDisagreeError:
    calls = ", ".join(f"rank {rank} {text}" for rank, text in texts.items())
    return RanksDisagreeError(f"expected the same collective calls on every rank, got {calls}; {_REMEDY}")
