"""Records as a sweep would write them."""

from collections.abc import Callable
from typing import Any

import pytest

from zbench.record.record import Correctness, Memory, Record, Timing


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Return a function that makes an `ok` record; keywords replace fields, `rate` the tokens a second."""

    def make(trial_id: str = "aaaaaaaaaaaa", repeat: int = 0, rate: float = 100.0, **changes: Any) -> Record:
        fields: dict[str, Any] = {
            "run_id": "run",
            "trial_id": trial_id,
            "repeat": repeat,
            "axes": {"zero_stage": 1},
            "config": {"run": {"world_size": 2}},
            "outcome": "ok",
            "timing": Timing([1 / rate], 1 / rate, rate, rate),
            "memory": Memory(1000, 0, 5000),
            "correctness": Correctness("identical", 1.0),
        }
        return Record(**(fields | changes))

    return make
