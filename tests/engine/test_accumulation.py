"""Each accumulation mode knows a step's boundary, and refuses calls out of turn without losing anything."""

from typing import Any

import pytest

from zbench.engine.policies import (
    AccumulationBoundary,
    AccumulationPolicy,
    MicroSteps,
    MultiBackward,
    Unmanaged,
)
from zbench.errors import UsageError

MARKS: dict[str, tuple[Any, list[bool | None], list[bool | None]]] = {
    "micro_steps": (lambda: MicroSteps(3), [None] * 3, [False, False, True]),
    "multi_backward": (MultiBackward, [None, False, True], [False, False, True]),
    "unmanaged": (Unmanaged, [None] * 3, [None] * 3),
}
"""Of each mode: a policy, the marks of a step's three backwards, and what is known of them."""


def backward(mode: AccumulationPolicy, last: bool | None = None) -> AccumulationBoundary:
    """Run one backward through a mode."""
    boundary = mode.next(last)
    mode.done()
    return boundary


@pytest.mark.parametrize(("make", "marks", "ends"), MARKS.values(), ids=MARKS.keys())
def test_each_mode_knows_the_first_backward_of_each_step_and_its_end_as_far_as_it_can(
    make: Any, marks: list[bool | None], ends: list[bool | None]
) -> None:
    mode: AccumulationPolicy = make()
    assert mode.divisor >= 1
    assert mode.next(marks[0]) == mode.next(marks[0]), "a backward that failed does not count"
    assert mode.count == 0
    for _ in range(2):
        with pytest.raises(UsageError, match=r"engine\.backward"):
            mode.check_step()
        boundaries = [backward(mode, mark) for mark in marks]
        assert [b.first for b in boundaries] == [True, False, False]
        assert [b.last for b in boundaries] == ends
        if ends[-1]:
            with pytest.raises(UsageError, match=r"call engine\.step"):
                mode.next(marks[-1])
        mode.check_step()
        mode.reset()


@pytest.mark.parametrize("mode", [MicroSteps(2), Unmanaged()], ids=["micro_steps", "unmanaged"])
@pytest.mark.parametrize("last", [False, True])
def test_only_multi_backward_takes_marks(mode: AccumulationPolicy, last: bool) -> None:
    with pytest.raises(UsageError, match="multi_backward"):
        mode.next(last)
