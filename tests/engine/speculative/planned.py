"""Steps that update under backward, or after it, as a test plans."""

from collections.abc import Sequence

from zbench.engine.speculative.sharing import UnderBackward


class Planned(UnderBackward):
    """One step for each entry of the plan: under backward where it is True. done: the steps taken."""

    def __init__(self, plan: Sequence[bool]) -> None:
        self._plan = iter(plan)
        self.now = next(self._plan)
        self.done: list[bool] = []

    def step_ends(self) -> None:
        self.done.append(self.now)
        self.now = next(self._plan, True)
