"""What the records of a sweep mean for its exit status."""

from typing import Any

import pytest

from tests.analysis.synthetic import record
from zbench.app.runs import exit_code
from zbench.errors import ExitCode


@pytest.mark.parametrize(
    ("mode", "verdict", "code"),
    [
        ("full", "identical", ExitCode.PASS),
        ("full", "unchecked", ExitCode.INCONCLUSIVE),  # seen: a NaN loss and a failed reference ended with 0
        ("reference", "unchecked", ExitCode.PASS),
        ("full", "wrong", ExitCode.CORRECTNESS),
    ],
)
def test_a_full_verdict_that_could_not_be_had_is_inconclusive(mode: str, verdict: Any, code: int) -> None:
    judged = record(verdict=verdict, config={"verify": {"mode": mode}, "engine": {}, "run": {}})
    assert exit_code([judged]) == code
    crashed = record(axes={"zero_stage": 2}, outcome="crashed")
    wrong = code == ExitCode.CORRECTNESS
    assert exit_code([judged, crashed]) == (ExitCode.CORRECTNESS if wrong else ExitCode.TRIALS_FAILED)
