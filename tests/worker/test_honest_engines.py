"""No right engine is accused: torch's engines and the built-in one, on training runs drawn over the zoo.

The soak draws its seed anew in each run and prints it; the suite's is fixed.
"""

import random
from collections.abc import Sequence

import pytest

from tests.verify.campaign import ACCUSED, engine_rows, table
from zbench.launch.trial import TrialRunner

SHORT = (8, 26)
"""Numbers of drawn runs of five steps."""


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        pytest.param(3, SHORT, marks=pytest.mark.check),
        pytest.param(
            random.randrange(1 << 30), range(250), marks=[pytest.mark.soak, pytest.mark.timeout(20_000)]
        ),
    ],
    ids=["short", "soak"],
)
def test_no_engine_is_accused(runner: TrialRunner, seed: int, numbers: Sequence[int]) -> None:
    print(f"seed {seed}")
    rows = [row for number in numbers for row in engine_rows(runner, seed, number, deepspeed=None)]
    print(table(rows))
    assert [row for row in rows if row.verdict in ACCUSED] == []
    assert any(row.verdict != "unchecked" for row in rows)
