"""Repeats into configurations; the best is feasible and correct, or there is none."""

import math
import statistics
from dataclasses import replace

import pytest

from tests.making import make_record
from zbench.analysis.ranking import by_figure
from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing
from zbench.record.summary import (
    first_goal,
    has_failed,
    obstacles,
    summarize,
)
from zbench.spec.metrics import Goal
from zbench.spec.sweep import ObjectiveSpec

FASTEST = ObjectiveSpec(maximize=["tokens_per_s"])


def test_repeats_become_one_summary_in_repeat_order():
    order = [("a", 1, 30.0), ("b", 0, 100.0), ("a", 0, 10.0), ("a", 2, 20.0)]
    first, second = summarize([make_record(*one) for one in order])
    assert [r.repeat for r in first.records] == [0, 1, 2]
    assert (first.trial_id, second.trial_id) == ("a", "b")
    assert first.number("tokens_per_s") == 20.0
    assert first.spread("tokens_per_s") == pytest.approx((30 - 10) / 2 / 20)
    assert second.spread("tokens_per_s") is None


def test_bytes_and_differences_are_the_largest_and_verdict_the_worst():
    records = [
        make_record(memory=MemoryPeaks(10, 0, 1), correctness=Correctness("identical", 1.0, diagnosis="x")),
        make_record(
            repeat=1, memory=MemoryPeaks(30, 0, 1), correctness=Correctness("wrong", 3.0, diagnosis="why")
        ),
        make_record(repeat=2, memory=MemoryPeaks(20, 0, 1), correctness=Correctness("identical", 1.0)),
    ]
    (summary,) = summarize(records)
    assert summary.metric("peak_device_bytes") == 30
    assert summary.metric("error_ratio") == 3.0
    assert (summary.metric("verdict"), summary.diagnosis) == ("wrong", "why")


def test_the_time_of_a_phase_is_the_median_over_repeats():
    phases = [{"forward": 0.2, "backward": 0.4}, {"forward": 0.3}, {"forward": 0.7, "reduce": 0.9}]
    records = [
        make_record(repeat=n, timing=Timing([1.0], 1.0, 256.0, 2.0, phases=one))
        for n, one in enumerate(phases)
    ]
    (summary,) = summarize([*records, make_record(repeat=3, timing=None)])
    assert summary.phases == {"forward": 0.3, "backward": 0.0, "reduce": 0.0}


@pytest.mark.parametrize(
    ("outcome", "kind", "failed"),
    [
        ("invalid", "invalid", False),
        ("oom", "oom", True),
        ("timeout", "timeout", True),
        ("timeout", "pruned", False),
    ],
)
def test_a_trial_that_a_search_ended_has_not_failed(outcome, kind, failed):
    record = make_record(outcome=outcome, error=Failure(kind, "why"))
    assert has_failed(record) == failed
    assert has_failed(summarize([record])[0]) == failed


def test_one_failed_repeat_makes_the_configuration_failed():
    failed = make_record(
        repeat=1, outcome="crashed", error=Failure("crashed", "why"), timing=None, memory=None
    )
    (summary,) = summarize([make_record(), failed])
    assert summary.outcome == "crashed"
    assert summary.error is not None
    assert summary.error.message == "why"
    assert summary.number("tokens_per_s") == 100.0
    assert by_figure([summary], FASTEST) == []


def test_best_is_the_fastest_that_is_correct_and_fits():
    records = [
        make_record("wrong", rate=900.0, correctness=Correctness("wrong", 1e6)),
        make_record("drifted", rate=800.0, correctness=Correctness("drifted", 10.0)),
        make_record("large", rate=600.0, memory=MemoryPeaks(3 << 30, 0, 0)),
        make_record("good", rate=500.0),
    ]
    objective = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 2Gi"})
    summaries = summarize(records)
    assert by_figure(summaries, objective)[0].trial_id == "good"
    assert by_figure(summaries, FASTEST)[0].trial_id == "large"
    reasons = {s.trial_id: obstacles(s, objective) for s in summaries}
    assert reasons["wrong"] == ["wrong"]
    assert reasons["good"] == []
    assert reasons["large"] == ["peak_device_bytes <= 2 GiB (has 3 GiB)"]


def test_constraint_on_the_verdict_is_named_once():
    objective = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"verdict": ">= identical"})
    wrong, equivalent = summarize([make_record("a", verdict="wrong"), make_record("b", verdict="equivalent")])
    assert obstacles(wrong, objective) == ["wrong"]
    assert obstacles(equivalent, objective) == ["verdict >= identical (has equivalent)"]


def test_a_rate_is_the_work_over_the_representative_time() -> None:
    """Seen: 59,293 tokens/s, a mean of two rates, beside a step of 46.6 ms, which makes 5,494."""
    (summary,) = summarize([timed(0.002, 0), timed(0.0912, 1)])
    step, rate = summary.number("mean_step_s"), summary.number("tokens_per_s")
    assert step == pytest.approx(0.0466)
    assert rate == pytest.approx(256 / 0.0466)
    assert summary.number("tflops") is None


@pytest.mark.parametrize(
    ("steps", "stalls"),
    [
        ([0.3 if n % 4 == 3 else 0.01 for n in range(20)], "1 step in 4 takes 300 ms, the median step 10 ms"),
        ([1.0] * 18 + [1.5, 10.5], "1 step in 20 takes 10.5 s, the median step 1 s"),
        ([0.01] * 19 + [0.04], None),
        ([0.01, 0.02] * 10, None),
    ],
    ids=["every fourth", "one as the mean", "below the limit", "alternating"],
)
def test_a_rate_counts_stalls_and_a_warning_names_them(steps: list[float], stalls: str | None) -> None:
    timing = Timing(steps, statistics.median(steps), None, None)
    assert timing.mean_step_s == pytest.approx(sum(steps) / 20)
    assert timing.p95_step_s == sorted(steps)[18]
    assert timing.worst_step_s == max(steps)
    assert timing.stalls == ([f"steps stall: {stalls}"] if stalls else [])


def test_the_slowest_step_is_that_of_all_repeats() -> None:
    records = [replace(timed(1.0, n), timing=Timing([1.0, n + 1.0], 1.0, None, None)) for n in range(3)]
    (summary,) = summarize(records)
    assert (summary.number("worst_step_s"), summary.number("p95_step_s")) == (3.0, 2.0)


def timed(step_s: float, repeat: int) -> Record:
    timing = Timing([step_s], step_s, 256 / step_s, 2 / step_s)
    return Record("run", "trial", repeat, {}, {}, "ok", timing=timing)


def test_a_repeat_that_took_no_time_has_no_rate() -> None:
    (summary,) = summarize([replace(timed(1.0, 0), timing=Timing([0.0], 0.0, 256.0, 2.0))])
    assert math.isnan(summary.metric("tokens_per_s"))
    assert by_figure([summary], FASTEST) == []


def test_a_goal_is_a_rate_that_every_repeat_has() -> None:
    known = [(1.0, 1.0), (None, 1.0)]
    records = [make_record(repeat=n, timing=Timing([1.0], 1.0, *rates)) for n, rates in enumerate(known)]
    assert first_goal(summarize(records), FASTEST) == Goal("samples_per_s", "maximize")
