"""What was seen, the best first."""

import pytest

from zbench.spec.metrics import Direction
from zbench.tune.history import Observation, Score, best_first

SEEN = [
    Observation({"p": "running"}, None),
    Observation({"p": "failed"}, Score(None, {"finished": 1.0})),
    Observation({"p": "low"}, Score((1.0, 9.0), {"peak": 0.0})),
    Observation({"p": "high"}, Score((3.0, 7.0), {"peak": -0.5})),
    Observation({"p": "high too"}, Score((3.0, 8.0))),
    Observation({"p": "too large"}, Score((5.0, 5.0), {"peak": 0.5})),
    Observation({"p": "too small"}, Score((0.5, 5.0), {"peak": 0.5})),
]


@pytest.mark.parametrize(
    ("direction", "order"),
    [("maximize", ["high", "high too", "low"]), ("minimize", ["low", "high", "high too"])],
)
def test_feasible_points_come_by_their_first_objective(direction: Direction, order: list[str]) -> None:
    assert [point["p"] for point in best_first(SEEN, (direction, "minimize"))] == order


def test_where_nothing_is_feasible_there_is_no_best() -> None:
    assert best_first(SEEN[:2], ("maximize",)) == []
