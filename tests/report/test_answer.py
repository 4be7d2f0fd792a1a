"""What a run answers: how far from the best, what a choice costs, what to run next, in which order."""

from pathlib import Path
from typing import Any

import pytest

from tests.making import make_record
from zbench.analysis.effects import Effect
from zbench.analysis.ranking import Ranking
from zbench.record.summary import ConfigSummary, summarize
from zbench.report.answer import answer_lines, bound_text, effect_text
from zbench.spec.sweep import ObjectiveSpec


def twice(name: str, seconds: float | None = None, **run: Any) -> ConfigSummary:
    """Return a configuration of two repeats that took this long each."""
    records = [make_record(name, n, elapsed_s=seconds, config={"run": run}) for n in range(2)]
    return summarize(records)[0]


@pytest.mark.parametrize(
    ("low", "high", "leads", "text"),
    [
        (None, None, True, "not known"),
        (0.047, None, False, "at least 4 %"),
        (0.5, 2.04, False, "1.5 to 3.0 times"),
        (None, 0.081, True, "at most 9 %"),
        (0.01, 0.02, False, "1 to 2 %"),
        (0.0057, 0.0081, False, "0.5 to 0.9 %"),
    ],
)  # fmt: skip
def test_bounds_are_rounded_outward_and_far_ones_are_factors(
    low: float | None, high: float | None, leads: bool, text: str
) -> None:
    worse_by, at_most = ({} if end is None else {"a": end} for end in (low, high))
    ranking = Ranking(indistinguishable=("a", "b") if leads else ("b",), worse_by=worse_by, at_most=at_most)
    assert bound_text(twice("a"), ranking) == text
    (once,) = summarize([make_record("a")])
    assert bound_text(once, ranking) == ("measured once" if text else "")
    assert bound_text(twice("a"), Ranking("a", ("a",), at_most={"a": 0.1})) == ""


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ((0.121, 0.089, 0.153, 5), "+12.1 % (+8.9 to +15.3), 5 pairs"),
        ((0.5, -0.9, 10.0, 2), "+50.0 % (not known within a factor of 10), 2 pairs"),
        ((0.5, None, None, 2, ("stage", 3), -0.02), "+50.0 %, 2 pairs; -2.0 % where stage=3"),
        ((0.5, None, None, 2, ("stage", 3), 0.01, True), "+50.0 %, 2 pairs; not where stage=3"),
    ],
)
def test_an_effect_has_its_interval_and_exception(figures: Any, text: str) -> None:
    assert effect_text(Effect("bucket", 100, 5, *figures)) == f"bucket: 100 against 5 {text}"


@pytest.mark.parametrize(
    ("within", "seconds", "asked", "says"),
    [
        (0.15, (40.0, 20.0), {}, "15 min"),  # of (log 1.15 / log 1.05) ** 2 times two repeats, two are there
        (None, (1.0, 59.0), {}, "18 min"),  # up to 20 repeats
        (0.05, (40.0, 20.0), {}, ""),
        (0.15, (40.0, 20.0), {"separate": 0.05}, ""),
    ],
)
def test_what_tells_leaders_apart_is_said_with_its_cost(
    tmp_path: Path, within: float | None, seconds: Any, asked: dict[str, Any], says: str
) -> None:
    leaders = [twice(name, one, **asked) for name, one in zip("ab", seconds, strict=True)]
    at_most = {} if within is None else dict.fromkeys("ab", within)
    ranking = Ranking(None, ("a", "b"), "a", at_most=at_most)
    objective = ObjectiveSpec(maximize=["tokens_per_s"])
    _, *more = (line.plain for line in answer_lines(leaders, objective, ranking, tmp_path))
    command = f"zbench sweep --resume {tmp_path} --separate 5%"
    assert more == ([f"to tell the 2 leaders apart, in about {says}: {command}"] if says else [])
