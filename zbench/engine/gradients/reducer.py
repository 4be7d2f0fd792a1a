"""Reduces full buckets asynchronously, a few at a time, in the same order on all ranks."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable

from torch import Tensor

from zbench.engine.gradients.bucket_buffers import BucketBuffers
from zbench.engine.gradients.reduced_buffers import ReducedGradientBuffer
from zbench.engine.partition import Bucket, Portion
from zbench.engine.protocols import Collectives, Tag, Work


class BucketReducer:
    """Launches the reduction of full buckets, in order of their index.

    on_reduced: called for every bucket of a step's last backward when its sums are in the reduced-gradient
    buffer, or with the work to wait for until they are; schedules that update during backward use it.
    in_flight: the most elements that are being reduced at once, in more than one bucket; 0 waits for each
    reduction, so nothing overlaps. polls: complete finished reductions whenever a gradient arrives, not only
    at the next launch; the reduced-gradient buffer must then launch no collective, because their order would
    differ between ranks.
    """

    def __init__(
        self,
        collectives: Collectives,
        reduced_gradients: ReducedGradientBuffer,
        *,
        in_flight: int,
        polls: bool = False,
    ) -> None:
        layout = reduced_gradients.shard.layout
        self.buckets = layout.buckets
        self.portions = [list(layout.portions(i)) for i in range(len(layout.spans))]  # of each parameter
        self.collectives, self.reduced_gradients = collectives, reduced_gradients
        self.in_flight, self.polls = in_flight, polls
        self.on_reduced: Callable[[Bucket, Work | None], None] = lambda bucket, arrival: None
        self._expected = [0] * len(self.buckets)
        self._tags = [Tag(f"the gradients of bucket {bucket.index}") for bucket in self.buckets]
        for portion in (p for of_one in self.portions for p in of_one):
            self._expected[portion.bucket] += 1
        self._bucket_buffers: BucketBuffers | None = None
        self._missing: list[int] = []
        self._zeros: defaultdict[int, list[Portion]] = defaultdict(list)
        self._next = 0
        self._last = False
        self._running: deque[tuple[Bucket, Work, Tensor]] = deque()
        self._running_elements = 0

    def begin(self, bucket_buffers: BucketBuffers, *, first: bool, last: bool) -> None:
        """Start a backward that reduces what is written to `bucket_buffers`."""
        self._bucket_buffers, self._last = bucket_buffers, last
        self._missing = list(self._expected)
        self._zeros.clear()
        self._next = 0
        self.reduced_gradients.begin(first=first, last=last)

    def skip(self, absent: Iterable[int], *, zeros: Collection[int]) -> None:
        """Expect no gradient for the parameters `absent` in this backward. Those in `zeros` have none from
        earlier backwards either: they count as zero. In a backward that does not reduce, do nothing.
        """
        if self._bucket_buffers is None:
            return
        for index in absent:
            for portion in self.portions[index]:
                self._missing[portion.bucket] -= 1
                if index in zeros:
                    self._zeros[portion.bucket].append(portion)
        self._launch_full()

    def filled(self, portion: Portion) -> None:
        """Note that one portion of the current backward's gradients has been written."""
        if self._bucket_buffers is not None:
            self._missing[portion.bucket] -= 1
            self._launch_full()
            while self.polls and self._running and self._running[0][1].is_completed():
                self._complete_oldest()

    def finish(self, missing: Iterable[int]) -> None:
        """End the backward: reduce what is left, with zeros for the parameters `missing`, and wait for all of
        it.
        """
        assert self._bucket_buffers is not None
        for portion in (p for index in missing for p in self.portions[index]):
            if portion.bucket >= self._next:
                self._bucket_buffers.clear(portion)
        self._missing = [0] * len(self.buckets)
        self._launch_full()
        self._complete_down_to(0)
        self._bucket_buffers = None

    def abandon(self) -> None:
        """Wait for what is in flight and discard the backward; all ranks must have launched the
        same buckets.
        """
        if self._bucket_buffers is not None:
            self._complete_down_to(0)
            for bucket in self.buckets[self._next :]:
                self._bucket_buffers.discard(bucket.index)
            self._bucket_buffers = None

    def _launch_full(self) -> None:
        while self._next < len(self.buckets) and self._missing[self._next] == 0:
            bucket = self.buckets[self._next]
            self._next += 1
            self._launch(bucket)

    def _launch(self, bucket: Bucket) -> None:
        assert self._bucket_buffers is not None
        for portion in self._zeros.pop(bucket.index, ()):
            self._bucket_buffers.clear(portion)
        self._complete_down_to(self.in_flight - bucket.length)  # bounds the memory in flight
        target = self.reduced_gradients.target(bucket)
        length = bucket.length // self.reduced_gradients.shard.layout.shards
        part = target if target.numel() == length else target.narrow(0, 0, length)
        send, tag = self._bucket_buffers.ready(bucket.index), self._tags[bucket.index]
        work = self.collectives.reduce_scatter(send, part, tag)
        self._running.append((bucket, work, target))
        self._running_elements += bucket.length
        if self.in_flight == 0:
            self._complete_down_to(0)  # nothing overlaps

    def _complete_down_to(self, keep: int) -> None:
        """Complete the oldest reductions until at most `keep` elements are in flight."""
        while self._running and self._running_elements > keep:
            self._complete_oldest()

    def _complete_oldest(self) -> None:
        assert self._bucket_buffers is not None
        bucket, work, target = self._running.popleft()
        self._running_elements -= bucket.length
        work.wait()
        self._bucket_buffers.close(bucket.index)
        arrival = self.reduced_gradients.store(bucket, target)
        if self._last:
            self.on_reduced(bucket, arrival)
