"""Correctness before speed, failures before figures, exact figures without a test, unlike machines out."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.analysis.compare import FAIL_ON, Comparison, Settings, compare_runs
from zbench.analysis.trials import Source
from zbench.errors import ExitCode, IncomparableError
from zbench.record.record import Record

from .synthetic import MACHINE, record, results, trial

EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]
AXES = [{"zero_stage": stage} for stage in (0, 1, 2)]


def slower(factor: float) -> list[float]:
    return [step * factor for step in EVEN]


def compared(base: list[Record], head: list[Record], **settings: Any) -> Comparison:
    return compare_runs(results(base), results(head, "head"), Settings(**settings))


def three(steps: list[float] = EVEN, **keywords: Any) -> list[Record]:
    return [item for axes in AXES for item in trial(steps, axes=axes, **keywords)]


@pytest.mark.parametrize(
    ("factor", "answer", "code"),
    [(1.0, "pass", 0), (1.25, "regression", 1), (1.05, "inconclusive", 3), (0.7, "pass", 0)],
)
def test_answers_and_exit_codes(factor: float, answer: str, code: int) -> None:
    found = compared(trial(EVEN), trial(slower(factor)))
    assert [row.answer for row in found.rows] == [answer]
    assert found.exit_code == code


@pytest.mark.parametrize("verdict", ["drifted", "wrong"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("count", [1, 6])
def test_incorrect_results_exit_4_however_fast(verdict: Any, factor: float, count: int) -> None:
    """One wrong repeat of many is enough."""
    steps = slower(factor)
    head = trial(steps[count:], verdict="identical") + [
        replace(item, repeat=item.repeat + 10) for item in trial(steps[:count], verdict=verdict)
    ]
    found = compared(trial(EVEN), head)
    assert found.rows[0].answer == "incorrect"
    assert found.exit_code == ExitCode.CORRECTNESS


def test_incorrect_trials_that_only_head_has_exit_4() -> None:
    found = compared(trial(EVEN), trial(EVEN) + trial(EVEN, axes={"zero_stage": 3}, verdict="wrong"))
    assert found.exit_code == ExitCode.CORRECTNESS


def test_a_verdict_lost_is_not_a_pass() -> None:
    found = compared(trial(EVEN), trial(EVEN, verdict="unchecked"))
    assert found.rows[0].verdict_lowered
    assert (found.rows[0].answer, found.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert compared(trial(EVEN), trial(EVEN, verdict="equivalent")).rows[0].answer == "pass"


@pytest.mark.parametrize("outcome", ["oom", "timeout", "crashed"])
def test_a_trial_that_fails_only_in_head_exits_6(outcome: Any) -> None:
    head = [*trial(EVEN[1:]), record(repeat=9, outcome=outcome)]
    found = compared(trial(EVEN), head)
    assert (found.rows[0].answer, found.exit_code) == ("failed", ExitCode.TRIALS_FAILED)
    both = compared(
        [record(outcome=outcome), *trial(EVEN, axes=AXES[0])],
        [record(outcome=outcome), *trial(EVEN, axes=AXES[0])],
    )
    assert both.exit_code == ExitCode.PASS
    assert [row.answer for row in both.rows] == ["unmeasured", "pass"]


def test_missing_and_added_trials_are_listed() -> None:
    found = compared(three(), trial(EVEN, axes=AXES[0]) + trial(EVEN, axes={"zero_stage": 3}))
    assert [item.axes for item in found.missing] == AXES[1:]
    assert [item.axes for item in found.added] == [{"zero_stage": 3}]
    assert found.exit_code == ExitCode.TRIALS_FAILED
    assert replace(found, settings=Settings(fail_on=frozenset({"regression"}))).exit_code == ExitCode.PASS


def test_what_fails_can_be_chosen() -> None:
    head = trial(EVEN, axes=AXES[0], verdict="wrong") + trial(slower(1.3), axes=AXES[1])
    found = compared(three(), head)
    codes = {
        word: int(replace(found, settings=Settings(fail_on=frozenset({word}))).exit_code) for word in FAIL_ON
    }
    assert codes == {"correctness": 4, "missing": 6, "regression": 1, "inconclusive": 0}
    assert replace(found, settings=Settings(fail_on=frozenset())).exit_code == ExitCode.PASS
    assert found.exit_code == ExitCode.CORRECTNESS


@pytest.mark.parametrize(
    ("before", "after", "threshold", "answer"),
    [
        (1000, 1000, 0.01, "same"),
        (1000, 1010, 0.01, "higher"),
        (1000, 1011, 0.01, "regression"),
        (1000, 1001, 0.0, "regression"),
        (1000, 900, 0.0, "lower"),
    ],
)
def test_bytes_need_no_test(before: int, after: int, threshold: float, answer: str) -> None:
    """Even one process a side shows them, and any change at all."""
    thresholds = {"step_time": 0.05, "peak_device_bytes": threshold, "traffic_bytes": threshold}
    base, head = (trial(EVEN, peak=size, traffic=size) for size in (before, after))
    found = compared(base, head, thresholds=thresholds | {"peak_host_bytes": 1.0})
    by_name = {change.metric: change for change in found.rows[0].exact}
    assert by_name["peak_device_bytes"].answer == by_name["traffic_bytes"].answer == answer
    assert by_name["peak_device_bytes"].change == pytest.approx(after / before - 1)
    assert found.exit_code == (ExitCode.REGRESSION if answer == "regression" else ExitCode.PASS)


def test_bytes_that_vary_or_were_estimated_are_shown_and_not_decided() -> None:
    varying = [record(0.1, repeat=i, peak=1000 + i) for i in range(6)]
    doubled = [record(0.1, repeat=i, peak=2000 + i) for i in range(6)]
    assert compared(varying, doubled).rows[0].exact[0].answer == "varies"
    guessed = compared(trial(EVEN, exact=False), trial(EVEN, peak=2_000_000, exact=False))
    assert guessed.rows[0].exact[0].answer == "estimated"
    assert guessed.exit_code == ExitCode.PASS


def test_summary_figures() -> None:
    head = [
        item
        for axes, factor in zip(AXES, (1.0, 1.21, 0.9), strict=True)
        for item in trial(slower(factor), axes=axes)
    ]
    found = compared(three(), head)
    assert found.geometric_mean == pytest.approx((1.21 * 0.9) ** (1 / 3) - 1)
    assert found.worst is not None
    assert found.best is not None
    assert (found.worst.base.axes, found.best.base.axes) == (AXES[1], AXES[2])


def test_a_newer_zbench_with_one_more_key_still_matches_by_axes() -> None:
    head = [
        replace(
            item, trial_id="other", config=item.config | {"engine": item.config["engine"] | {"new_key": 1}}
        )
        for item in trial(EVEN)
    ]
    found = compared(trial(EVEN), head)
    assert found.rows[0].match.note == "only in head: engine.new_key"
    changed = [replace(item, config={"engine": {"engine": "ddp"}}) for item in head]
    with pytest.raises(IncomparableError, match="no configuration is in both"):
        compared(trial(EVEN), changed)


def test_another_sweep_is_incomparable() -> None:
    with pytest.raises(IncomparableError, match=r"base has 1 of sweep example, head has 1 of sweep example"):
        compared(trial(EVEN, axes={"a": 1}), trial(EVEN, axes={"b": 1}))


def test_unlike_machines_are_refused_unless_insisted_and_then_marked() -> None:
    base, head = results(trial(EVEN)), results(trial(EVEN), "head", facts=MACHINE | {"cpu": "Other CPU"})
    with pytest.raises(IncomparableError, match=r"cpu: Example CPU, Other CPU.*--across"):
        compare_runs(base, head, Settings())
    found = compare_runs(base, head, Settings(across=True))
    assert found.unlike == ("cpu: Example CPU, Other CPU",)


def test_a_machine_of_which_nothing_is_known_is_unlike_every_other() -> None:
    unknown = replace(results(trial(EVEN)), source=Source("loose file"))
    with pytest.raises(IncomparableError, match="loose file: machine unknown"):
        compare_runs(unknown, unknown, Settings())
