"""Reduction of buckets where it is known beforehand which gradients a backward brings."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from zbench.engine.partition import Bucket, Portion
from zbench.engine.reduction import BucketReducer
from zbench.engine.sending import Sends


class ForeseeingReducer(BucketReducer):
    """Lets no bucket wait for a gradient that will not come."""

    def begin(self, sends: Sends, *, first: bool, last: bool) -> None:
        self._blank: defaultdict[int, list[Portion]] = defaultdict(list)
        super().begin(sends, first=first, last=last)

    def skip(self, absent: Iterable[int], *, blank: Collection[int]) -> None:
        """The backward that just began brings nothing for the parameters `absent`; those in `blank` have no
        gradient from earlier backwards either, and count as zero."""
        for index in absent:
            for portion in self.portions[index]:
                self._missing[portion.bucket] -= 1
                if index in blank:
                    self._blank[portion.bucket].append(portion)
        self._launch_full()

    def _launch(self, bucket: Bucket) -> None:
        assert self._sends is not None
        for portion in self._blank.pop(bucket.index, ()):
            self._sends.open(bucket.index)[portion.target : portion.target + portion.length].zero_()
        super()._launch(bucket)
