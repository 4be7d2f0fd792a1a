"""Two stored runs beside the machine's yardstick: each part must agree with the claim."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.evidence import share_followed
from zbench.analysis.settings import Settings
from zbench.record.record import Disturbance, Heat, Record
from zbench.report.exports import texts

from .synthetic import MACHINE, results, trial

QUIET = {"compute": 0.0, "memory": 0.0, "meeting": 0.0}
BUSY = {"compute": 0.5, "memory": 0.35, "meeting": 0.7}
"""By how much a neighbour slows each part, a logarithm; a configuration is slowed by a value between them."""


def beside(logs: Sequence[float], pace: Mapping[str, Any] = QUIET, version: int = 1) -> list[Record]:
    """Return repeats whose time is `logs`, each in a heat in which the yardstick's parts took `pace`."""
    return [
        replace(
            record,
            disturbance=Disturbance(0.9 if any(map(np.any, pace.values())) else 0.0),
            heat=Heat(str(record.repeat), [math.exp(log)] * 4, yardstick=version, machine={
                part: [math.exp(float(np.ravel(value)[record.repeat % np.size(value)]))] * 4
                for part, value in pace.items()
            }),
        )
        for record, log in zip(trial([math.exp(log) for log in logs]), logs, strict=True)
    ]  # fmt: skip


def measured(rng: np.random.Generator, n: int, by: float = 0.0, busy: float | None = None) -> list[Record]:
    """Return a run of n repeats whose quotients vary by 2 %; by 7 % beside a neighbour, which slows the
    configuration by `busy`, a logarithm.
    """
    noise, spread = (0.0194, 0.0048) if busy is None else (0.06, 0.03)
    logs = rng.normal(math.log1p(by) + (busy or 0.0), noise, n)
    pace = {part: load * (busy is not None) + rng.normal(0, spread, n) for part, load in BUSY.items()}
    return beside(logs.tolist(), pace)


def compared(base: list[Record], head: list[Record], **source: Any) -> Comparison:
    return compare_runs(results(base), results(head, "head", **source), Settings(across=bool(source)))


@pytest.mark.check
@pytest.mark.parametrize(
    ("slower", "repeats", "answer", "least"),
    [
        (0.25, 5, "regression", 270),
        (0.0, 7, "pass", 240),
        pytest.param(0.1, 7, "regression", 240, marks=pytest.mark.check),
    ],
)
def test_without_a_history_a_quiet_machine_decides(
    slower: float, repeats: int, answer: str, least: int
) -> None:
    rng = np.random.default_rng(1)
    pairs = [(measured(rng, repeats), measured(rng, repeats, slower)) for _ in range(300)]
    assert sum(compared(*pair).rows[0].answer == answer for pair in pairs) >= least


@pytest.mark.parametrize("felt", [0.5, pytest.param(0.0, marks=pytest.mark.check)])
@pytest.mark.parametrize("side", [0, pytest.param(1, marks=pytest.mark.check)])
def test_a_neighbour_makes_no_claim_and_hides_no_doubling(felt: float, side: int) -> None:
    rng = np.random.default_rng(2)

    def decisions(slower: float, count: int) -> list[Any]:
        busy = (felt, None) if side == 0 else (None, felt)
        pairs = [[measured(rng, 5, 0.0, busy[0]), measured(rng, 5, slower, busy[1])] for _ in range(count)]
        return [compared(*pair).rows[0].step_time for pair in pairs]

    wrong = ("regression", "pass") if felt else ("regression",)  # not slower: by plain time, and beside it
    assert not any(one.answer in wrong or one.faster for one in decisions(0.0, 60))
    assert felt == 0.0 or sum(one.answer == "regression" for one in decisions(1.0, 100)) >= 80
    assert not any(one.faster for one in decisions(0.25, 60))


def test_a_part_counts_as_far_as_repeats_may_follow_it() -> None:
    rng = np.random.default_rng(3)
    answers = []
    for _ in range(300):
        memory = rng.normal(0, 0.1, (2, 1)) + rng.normal(0, 0.1, (2, 7))
        runs = [beside((rng.normal(0, 0.01, 7) + pace).tolist(), {"memory": pace}) for pace in memory]
        answers.append(compared(*runs).rows[0].answer)
    assert answers.count("regression") <= 6
    steps, pace = rng.normal(0, 0.01, (2, 7)), rng.normal(0, 0.1, (2, 7))
    shares = [share_followed(steps, pace + np.array([[0.0], [apart]])) for apart in (0.0, 0.6)]
    assert (shares[0] < 0.3, shares[1]) == (True, 1.0)


def test_a_part_that_disagrees_is_named() -> None:
    logs = [0.001 * i for i in range(7)]
    head = beside([log + 0.3 for log in logs], QUIET | {"meeting": 0.3})
    comparison = compared(beside(logs), head)
    (row,) = comparison.rows
    assert row.step_time is not None
    assert (row.answer, row.step_time.faster) == ("suspected", False)
    assert "regression by compute and memory and plain time, pass by meeting" in row.step_time.reason
    assert comparison.no_yardstick == ""
    assert "divided by each part of the machine's yardstick" in texts.method(comparison)


@pytest.mark.parametrize(
    ("head", "source", "why"),
    [
        (beside([0.0] * 5, version=2), {}, "another version (base 1, head 2)"),
        ([replace(one, heat=None) for one in trial([1.0] * 5)], {}, "three repeats of head"),
        (beside([0.0] * 2), {}, "run zbench sweep --resume head --repeats 3"),
        (beside([0.0] * 5), {"facts": MACHINE | {"cpu": "Other CPU"}}, "another CPU"),
    ],
    ids=["version", "none", "two repeats", "cpu"],
)
def test_without_a_common_yardstick_one_message_says_why(
    head: list[Record], source: dict[str, Any], why: str
) -> None:
    comparison = compared(beside([0.0] * 5), head, **source)
    assert why in comparison.no_yardstick
    assert [why in line for line in texts.summary(comparison)].count(True) == 1
    answer = "inconclusive" if len(head) == 5 else "unchecked"  # three repeats are lost
    assert comparison.rows[0].answer == answer
    assert comparison.rows[0].step_time.reason.endswith(
        "measure it paired: zbench compare BASE HEAD --paired --sweep FILE"
    )
