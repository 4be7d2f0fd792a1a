"""The order in which parameter groups were used, which says what to gather ahead."""

from zbench.engine.parameters.sharded import ShardedGroup


class GatherOrder:
    """The order in which groups were used in the last region: the prediction for the next one.

    From the first use that differs from the prediction, the order is recorded again.
    """

    def __init__(self) -> None:
        self.order: list[ShardedGroup] = []
        self.position = 0

    def restart(self) -> None:
        """Start a region: predictions begin with the first group again."""
        self.position = 0

    def record(self, group: ShardedGroup, longest: int) -> None:
        """Record that `group` is used now. At most `longest` uses are kept."""
        if self.position < len(self.order) and self.order[self.position] is not group:
            del self.order[self.position :]
        if self.position == len(self.order):
            if self.position == longest:
                return
            self.order.append(group)
        self.position += 1

    def ahead(self, elements: int) -> list[ShardedGroup]:
        """Return the groups that are expected next, up to `elements` elements in total."""
        found: list[ShardedGroup] = []
        for group in self.order[self.position :]:
            elements -= 0 if group in found else group.numel
            if elements < 0:
                break
            found.append(group)
        return found
