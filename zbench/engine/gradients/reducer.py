"""Buckets in flight: each is reduced as soon as it is full, in the same order on all ranks, a few at a
time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable

from torch import Tensor

from zbench.engine.gradients.bucket_buffers import Sends
from zbench.engine.gradients.reduced_buffers import Landing
from zbench.engine.partition import Bucket, Portion
from zbench.engine.protocols import Collectives, Work


class BucketReducer:
    """Launches the reduction of full buckets, in order of their index.

    `on_reduced` hears of every bucket of a step's last backward once its sums are in the landing, or of what
    to wait for until they are: the seam for schedules that update under the backward pass. `in_flight` bounds
    the elements that are being reduced; with 0 each reduction is waited for, so nothing overlaps. Where
    `watches`, every gradient that comes is an occasion to land what is done, not only another launch; then no
    landing may launch a collective, whose order among ranks would be anybody's.
    """

    def __init__(
        self, collectives: Collectives, landing: Landing, *, in_flight: int, watches: bool = False
    ) -> None:
        layout = landing.shard.layout
        self.buckets = layout.buckets
        self.portions = [list(layout.portions(i)) for i in range(len(layout.spans))]  # of each parameter
        self.collectives, self.landing = collectives, landing
        self.in_flight, self.watches = in_flight, watches
        self.on_reduced: Callable[[Bucket, Work | None], None] | None = None
        self._expected = [0] * len(self.buckets)
        for portion in (p for of_one in self.portions for p in of_one):
            self._expected[portion.bucket] += 1
        self._sends: Sends | None = None
        self._missing: list[int] = []
        self._blank: defaultdict[int, list[Portion]] = defaultdict(list)
        self._next = 0
        self._last = False
        self._flying: deque[tuple[Bucket, Work, Tensor]] = deque()

    def begin(self, sends: Sends, *, first: bool, last: bool) -> None:
        """Start a backward that reduces what is written to `sends`."""
        self._sends, self._last = sends, last
        self._missing = list(self._expected)
        self._blank.clear()
        self._next = 0
        self.landing.begin(first=first, last=last)

    def skip(self, absent: Iterable[int], *, blank: Collection[int]) -> None:
        """The backward that just began brings nothing for the parameters `absent`, so no bucket waits for it;
        those in `blank` have no gradient from earlier backwards either, and count as zero.
        """
        for index in absent:
            for portion in self.portions[index]:
                self._missing[portion.bucket] -= 1
                if index in blank:
                    self._blank[portion.bucket].append(portion)
        self._launch_full()

    def filled(self, portion: Portion) -> None:
        """One portion of the current backward's gradients has been written."""
        if self._sends is not None:
            self._missing[portion.bucket] -= 1
            self._launch_full()
            while self.watches and self._flying and self._flying[0][1].is_completed():
                self._land_oldest()

    def finish(self, stale: Iterable[int]) -> None:
        """End the backward: parameters in `stale` count as zero; reduce what is left and wait for all of
        it.
        """
        assert self._sends is not None
        for portion in (p for index in stale for p in self.portions[index]):
            if portion.bucket >= self._next:
                self._clear(self._sends, portion)
        self._missing = [0] * len(self.buckets)
        self._launch_full()
        self._land(0)
        self._sends = None

    def abandon(self) -> None:
        """Complete what is in flight and forget the backward; its peers must have launched the same
        buckets.
        """
        if self._sends is not None:
            self._land(0)
            for bucket in self.buckets[self._next :]:
                self._sends.discard(bucket.index)
            self._sends = None

    def _launch_full(self) -> None:
        while self._next < len(self.buckets) and self._missing[self._next] == 0:
            bucket = self.buckets[self._next]
            self._next += 1
            self._launch(bucket)

    def _launch(self, bucket: Bucket) -> None:
        assert self._sends is not None
        for portion in self._blank.pop(bucket.index, ()):
            self._clear(self._sends, portion)
        self._land(self.in_flight - bucket.length)
        target = self.landing.target(bucket)
        part = target[: bucket.length // self.collectives.world_size]
        work = self.collectives.reduce_scatter(self._sends.ready(bucket.index), part)
        self._flying.append((bucket, work, target))
        if self.in_flight == 0:
            self._land(0)

    @staticmethod
    def _clear(sends: Sends, portion: Portion) -> None:
        sends.open(portion.bucket)[portion.target : portion.target + portion.length].zero_()

    def _land(self, keep: int) -> None:
        """Wait for the oldest until no more than `keep` elements are in flight."""
        while self._flying and sum(bucket.length for bucket, _, _ in self._flying) > keep:
            self._land_oldest()

    def _land_oldest(self) -> None:
        assert self._sends is not None
        bucket, work, target = self._flying.popleft()
        work.wait()
        self._sends.close(bucket.index)
        arrival = self.landing.landed(bucket, target)
        if self._last and self.on_reduced is not None:
            self.on_reduced(bucket, arrival)
