"""The life of a bucket of gradients, from its first gradient to the optimizer step.

         write             launch              complete           on_reduced
EMPTY ----------> FILLING ----------> IN_FLIGHT ----------> REDUCED ----------> CONSUMED
  ^                 ^                                        |  |                  |
  |                 |       write, in the next backward      |  |                  |
  |                 +----------------------------------------+  |                  |
  +-------------------------------------------------------------+------------------+
                      clear: the step was taken, or discarded (from every state)
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from torch import Tensor

from zbench.engine.gradients.storage import BucketMemory, RankSums
from zbench.engine.partition import Bucket, Portion
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.transport.buffers import Loan
from zbench.engine.transport.sums import accumulate


class BucketState(Enum):
    """Where the gradients of a bucket are."""

    EMPTY = auto()
    """None of this step has come."""
    FILLING = auto()
    """In the bucket's memory or, between two backwards, in host memory; more may come."""
    IN_FLIGHT = auto()
    """Being reduced: nobody writes them."""
    REDUCED = auto()
    """Added to the rank sums. Another backward may bring more."""
    CONSUMED = auto()
    """In the rank sums, which are final and which the optimizer reads until the step ends."""


_NEXT = {
    BucketState.EMPTY: {BucketState.FILLING},
    BucketState.FILLING: {BucketState.IN_FLIGHT, BucketState.EMPTY},
    BucketState.IN_FLIGHT: {BucketState.REDUCED, BucketState.EMPTY},  # empty: its reduction has failed
    BucketState.REDUCED: {BucketState.FILLING, BucketState.CONSUMED, BucketState.EMPTY},
    BucketState.CONSUMED: {BucketState.EMPTY},
}


@dataclass(eq=False, slots=True)
class GradientBucket:
    """One bucket. portions: those that a backward writes; missing: how many are still to come in this one.
    loan: the memory of its gradients; holds: the parameters whose gradients are in it.
    """

    place: Bucket
    tag: Tag
    portions: list[Portion] = field(default_factory=list)
    missing: int = 0
    state: BucketState = BucketState.EMPTY
    loan: Loan | None = None
    holds: set[int] = field(default_factory=set)

    def become(self, state: BucketState) -> None:
        """Take the next state."""
        assert state in _NEXT[self.state], f"{self.state} -> {state}: {self.tag.topic}"
        self.state = state


class Buckets:
    """Writes gradients to buckets, and reduces full ones asynchronously, in the same order on all ranks.

    on_reduced: called for every bucket of a step's last backward when its sums are in the rank sums, or with
    the work to wait for until they are. Schedules that update during backward use it. in_flight: the most
    elements that are being reduced at once, in more than one bucket; 0 waits for each reduction, so nothing
    overlaps. polls: complete finished reductions whenever a gradient arrives, not only at the next launch;
    the sums must then launch no collective, because their order would differ between ranks.
    """

    def __init__(
        self, collectives: Collectives, sums: RankSums, *, in_flight: int, polls: bool = False
    ) -> None:
        layout = sums.shard.layout
        self.portions = [list(layout.portions(i)) for i in range(len(layout.spans))]  # of each parameter
        self.collectives, self.sums, self.in_flight, self.polls = collectives, sums, in_flight, polls
        self.on_reduced: Callable[[Bucket, Work | None], None] = lambda bucket, arrival: None
        self.all = [GradientBucket(b, Tag(f"the gradients of bucket {b.index}")) for b in layout.buckets]
        for portion in (p for of_one in self.portions for p in of_one):
            self.all[portion.bucket].portions.append(portion)
        self._memory: BucketMemory
        self._reduces = self._last = False
        self._to_launch: deque[GradientBucket] = deque()
        self._running: deque[tuple[GradientBucket, Work, Loan]] = deque()

    def begin(self, memory: BucketMemory, *, reduces: bool, first: bool = True, last: bool = True) -> None:
        """Start a backward whose gradients are written to `memory`.

        reduces: whether they are reduced in it. first, last: whether it is the first, and the last, backward
        of its step that reduces.
        """
        self._memory, self._reduces, self._last = memory, reduces, last
        self._to_launch = deque(self.all if reduces else ())
        for bucket in self.all:
            bucket.missing = len(bucket.portions)
        memory.begin(reduces=reduces)
        if reduces:
            self.sums.begin(first=first, last=last)

    def write(self, index: int, gradient: Tensor) -> None:
        """Write parameter `index`'s gradient (any strides), or add it to the one that its bucket holds;
        reduce what is full.
        """
        for portion, source in _runs(self.portions[index], gradient):
            bucket = self.all[portion.bucket]
            buffer = self._open(bucket, source).buffer
            if buffer is not source:
                place = buffer.narrow(0, portion.target, portion.length)
                if source.dim() != 1:
                    place = place.view(source.shape)
                accumulate(place, source) if index in bucket.holds else place.copy_(source)
            bucket.holds.add(index)
            bucket.missing -= 1
            if bucket.missing == 0 and not self._reduces:
                self._keep(bucket)
            self._launch_full()
        while self.polls and self._running and self._running[0][1].is_completed():
            self._complete_oldest()

    def skip(self, absent: Iterable[int]) -> None:
        """Wait for no gradient of the parameters `absent` in this backward, if it reduces."""
        if self._to_launch:
            for portion in (p for index in absent for p in self.portions[index]):
                self.all[portion.bucket].missing -= 1
            self._launch_full()

    def finish(self) -> None:
        """End the backward. What reduces reduces what is left, and waits for all of it."""
        for bucket in self.all:
            if self._reduces:
                bucket.missing = 0
            elif bucket.loan is not None:
                self._keep(bucket)
        self._launch_full()
        self._complete_down_to(0)

    def abandon(self) -> None:
        """Launch nothing more, and wait for what is in flight: all ranks must have launched the same."""
        self._to_launch.clear()
        self._complete_down_to(0)

    def clear(self) -> None:
        """Let every bucket be empty: the optimizer has read the sums, or the step is discarded."""
        assert not self._running, "a reduction is under way"
        for bucket in self.all:
            self._give_back(bucket)
            if bucket.state is not BucketState.EMPTY:
                bucket.become(BucketState.EMPTY)

    @property
    def consumed(self) -> bool:
        """Whether the optimizer may read the step's sums."""
        return bool(self.all) and all(bucket.state is BucketState.CONSUMED for bucket in self.all)

    def _open(self, bucket: GradientBucket, gradient: Tensor | None = None) -> Loan:
        if bucket.loan is None:
            bucket.loan, bucket.holds = self._memory.open(bucket.place, gradient)
        if bucket.state is not BucketState.FILLING:
            bucket.become(BucketState.FILLING)
        return bucket.loan

    def _zero_filled(self, bucket: GradientBucket) -> Loan:
        """Return the memory of a bucket to which no more gradients come: what it does not hold is zero."""
        loan = self._open(bucket)
        for portion in bucket.portions:
            if portion.parameter not in bucket.holds:
                loan.buffer.narrow(0, portion.target, portion.length).zero_()
        return loan

    def _keep(self, bucket: GradientBucket) -> None:
        bucket.loan = self._memory.keep(bucket.place, self._zero_filled(bucket), bucket.holds)

    def _launch_full(self) -> None:
        while self._to_launch and self._to_launch[0].missing == 0:
            self._launch(self._to_launch.popleft())

    def _launch(self, bucket: GradientBucket) -> None:
        self._complete_down_to(self.in_flight - bucket.place.length)  # bounds the memory in flight
        target = self.sums.target(bucket.place)
        bucket.loan = self._memory.ready(bucket.place, self._zero_filled(bucket))
        work = self.collectives.reduce_scatter(bucket.loan.buffer, target.buffer, bucket.tag)
        bucket.become(BucketState.IN_FLIGHT)
        self._running.append((bucket, work, target))
        if self.in_flight == 0:
            self._complete_down_to(0)  # nothing overlaps

    def _complete_down_to(self, keep: int) -> None:
        """Complete the oldest reductions until at most `keep` elements are in flight."""
        while self._running and sum(b.place.length for b, _, _ in self._running) > keep:
            self._complete_oldest()

    def _complete_oldest(self) -> None:
        bucket, work, target = self._running.popleft()
        work.wait()
        self._give_back(bucket)
        arrival = self.sums.store(bucket.place, target)
        bucket.become(BucketState.REDUCED)
        if self._last:
            bucket.become(BucketState.CONSUMED)
            self.on_reduced(bucket.place, arrival)

    def _give_back(self, bucket: GradientBucket) -> None:
        if bucket.loan is not None:
            bucket.loan.give_back()
            bucket.loan = None


def _runs(portions: Sequence[Portion], gradient: Tensor) -> list[tuple[Portion, Tensor]]:
    """Return each portion of a gradient, with the run of the gradient that it is."""
    flat = gradient.reshape(-1) if gradient.is_contiguous() or len(portions) > 1 else gradient
    if len(portions) == 1:
        return [(portions[0], flat)]
    return [(p, flat.narrow(0, p.source, p.length)) for p in portions]
