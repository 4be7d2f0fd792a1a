"""Two runs compared: rows, answers, exit codes, unlike machines."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.settings import FAIL_ON, FailOn, Settings
from zbench.analysis.trials import RunResults, Source
from zbench.errors import ExitCode, IncomparableError
from zbench.record.record import Disturbance, Record, Traffic
from zbench.report.exports import texts

from .synthetic import record, results, trial

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
    [
        (1.0, "pass", 0),
        (1.25, "regression", 1),
        (1.04, "inconclusive", 3),
        (1.06, "suspected", 3),
    ],
)
def test_answers_and_exit_codes(factor: float, answer: str, code: int) -> None:
    comparison = compared(trial(EVEN), trial(slower(factor)))
    assert [row.answer for row in comparison.rows] == [answer]
    assert comparison.exit_code == code


@pytest.mark.parametrize("verdict", ["drifted", "wrong"])
def test_incorrect_results_exit_4_however_fast(verdict: Any) -> None:
    """One wrong repeat of many is enough."""
    head = [*trial(slower(0.5)), record(0.05, repeat=10, verdict=verdict)]
    comparison = compared(trial(EVEN), head)
    assert comparison.rows[0].answer == "incorrect"
    assert comparison.exit_code == ExitCode.CORRECTNESS
    added = [replace(item, trial_id="other", axes={"zero_stage": 3}) for item in head]
    assert compared(trial(EVEN), trial(EVEN) + added).exit_code == ExitCode.CORRECTNESS


def test_a_verdict_lost_is_not_a_pass() -> None:
    comparison = compared(trial(EVEN), trial(EVEN, verdict="unchecked"))
    assert comparison.rows[0].verdict_lowered
    assert (comparison.rows[0].answer, comparison.exit_code) == ("unchecked", ExitCode.INCONCLUSIVE)
    assert compared(trial(EVEN), trial(EVEN, verdict="equivalent")).rows[0].answer == "pass"


def test_missing_and_added_trials_are_listed() -> None:
    result = compared(three(), trial(EVEN, axes=AXES[0]) + trial(EVEN, axes={"zero_stage": 3}))
    assert [item.axes for item in result.missing] == AXES[1:]
    assert [item.axes for item in result.added] == [{"zero_stage": 3}]
    assert result.exit_code == ExitCode.TRIALS_FAILED
    assert replace(result, settings=Settings(fail_on=frozenset({"regression"}))).exit_code == ExitCode.PASS


@pytest.mark.parametrize("word", FAIL_ON)
@pytest.mark.parametrize(
    ("doubt", "factor", "verdict"),
    [("suspected", 1.06, "identical"), ("inconclusive", 1.04, "identical"), ("unchecked", 1.0, "unchecked")],
)
def test_a_doubt_fails_by_its_own_name_and_by_inconclusive(
    doubt: str, factor: float, verdict: Any, word: FailOn
) -> None:
    comparison = compared(trial(EVEN), trial(slower(factor), verdict=verdict), fail_on=frozenset({word}))
    assert [row.answer for row in comparison.rows] == [doubt]
    assert comparison.exit_code == (3 if word in (doubt, "inconclusive") else 0)


def test_what_fails_can_be_chosen() -> None:
    head = trial(EVEN, axes=AXES[0], verdict="wrong") + trial(slower(1.3), axes=AXES[1])
    result = compared(three(), head)
    codes = {
        word: int(replace(result, settings=Settings(fail_on=frozenset({word}))).exit_code) for word in FAIL_ON
    }
    silent = {"suspected": 0, "unchecked": 0, "inconclusive": 0}
    assert codes == {"correctness": 4, "missing": 6, "regression": 1} | silent
    assert replace(result, settings=Settings(fail_on=frozenset())).exit_code == ExitCode.PASS
    assert result.exit_code == ExitCode.CORRECTNESS


@pytest.mark.parametrize(
    ("before", "after", "threshold", "answer"),
    [
        (1000, 1000, 0.01, "same"),
        (1000, 1010, 0.01, "higher"),
        (1000, 1011, 0.01, "regression"),
        (1000, 900, 0.0, "lower"),
    ],
)
def test_bytes_need_no_test(before: int, after: int, threshold: float, answer: str) -> None:
    """Even one process a side shows them, and any change at all."""
    thresholds = {"step_time": 0.05, "peak_device_bytes": threshold, "traffic_bytes": threshold}
    base, head = (trial(EVEN, peak=size, traffic=size) for size in (before, after))
    comparison = compared(base, head, thresholds=thresholds | {"peak_host_bytes": 1.0})
    assert compared(base[:1], head[:1], thresholds=thresholds).rows[0].exact[0].answer == answer
    by_name = {change.metric: change for change in comparison.rows[0].exact}
    assert by_name["peak_device_bytes"].answer == by_name["traffic_bytes"].answer == answer
    assert by_name["peak_device_bytes"].change == pytest.approx(after / before - 1)
    assert comparison.exit_code == (ExitCode.REGRESSION if answer == "regression" else ExitCode.PASS)


def test_varying_bytes_are_decided_by_the_smallest_and_the_largest() -> None:
    """Seen: 50 times the peak memory passed, because a single byte varied."""
    varying = [record(0.1, repeat=i, peak=1000 + i) for i in range(6)]
    fifty = [record(0.1, repeat=i, peak=50 * 1000 + i) for i in range(6)]
    comparison = compared(varying, fifty)
    assert comparison.rows[0].exact[0].answer == comparison.rows[0].answer == "regression"
    assert comparison.exit_code == ExitCode.REGRESSION
    overlapping = [record(0.1, repeat=i, peak=1004 + i) for i in range(6)]
    assert compared(varying, overlapping).rows[0].exact[0].answer == "varies"


def test_steps_that_stall_are_a_regression() -> None:
    """Seen: 10 % of the steps 100 times slower passed, because their median was the same."""

    def stalling(item: Record) -> Record:
        assert item.timing is not None
        step = item.timing.median_step_s
        steps = [100 * step if n % 10 == 0 else step for n in range(20)]
        mean = sum(steps) / len(steps)
        assert item.heat is not None
        heat = replace(item.heat, turn_seconds=[mean] * 3)
        return replace(item, timing=replace(item.timing, step_seconds=steps), heat=heat)

    comparison = compared(trial(EVEN), [stalling(item) for item in trial(EVEN)])
    assert (comparison.rows[0].answer, comparison.exit_code) == ("regression", ExitCode.REGRESSION)
    assert comparison.rows[0].step_time is not None
    assert comparison.rows[0].step_time.change == pytest.approx(99 / 10)


@pytest.mark.parametrize(
    ("change", "repeats", "answer", "code"),
    [
        ({"traffic": {"all_reduce": Traffic(2, 8_000_000)}}, 4, "regression", ExitCode.REGRESSION),
        ({"traffic": {"all_reduce": Traffic(2, 8_000_000)}}, 1, "suspected", ExitCode.INCONCLUSIVE),
        ({"memory": None}, 6, "unchecked", ExitCode.INCONCLUSIVE),
    ],
)
def test_a_figure_lost_or_above_in_some_repeats_is_told(
    change: dict[str, Any], repeats: int, answer: str, code: ExitCode
) -> None:
    head = [replace(item, **change) if item.repeat < repeats else item for item in trial(EVEN)]
    comparison = compared(trial(EVEN), head)
    assert (comparison.rows[0].answer, comparison.exit_code) == (answer, code)
    assert any(answer in line or "+100.0 %" in line for line in texts.reasons(comparison.rows[0]))


def test_a_category_that_grew_is_a_regression_activations_are_not() -> None:
    def of(categories: dict[str, int]) -> list[Record]:
        return [
            replace(item, memory=replace(item.memory, by_category=categories))
            for item in trial(EVEN)
            if item.memory is not None
        ]

    base = of({"parameters": 100, "gradients": 100, "activations": 500})
    more_buckets = of({"parameters": 100, "gradients": 150})
    remainder = of({"parameters": 100, "activations": 900})
    row = compared(base, more_buckets).rows[0]
    assert [one.metric for one in row.exact_with("regression")] == ["memory.gradients"]
    assert row.answer == "regression"
    assert compared(base, remainder).rows[0].answer == "pass"


def test_summary_figures() -> None:
    head = [
        item
        for axes, factor in zip(AXES, (1.0, 1.21, 0.9), strict=True)
        for item in trial(slower(factor), axes=axes)
    ]
    comparison = compared(three(), head)
    assert comparison.geometric_mean == pytest.approx((1.21 * 0.9) ** (1 / 3) - 1)
    assert comparison.worst is not None
    assert comparison.best is not None
    assert (comparison.worst.base.axes, comparison.best.base.axes) == (AXES[1], AXES[2])


def test_verification_does_not_tell_configurations_apart_the_engine_does() -> None:
    def head(engine: str) -> list[Record]:
        config = {"engine": {"engine": engine}, "verify": {"mode": "off"}, "run": {"steps": 3, "repeats": 9}}
        return [replace(item, trial_id="other", config=config) for item in trial(EVEN)]

    full = {"engine": {"engine": "builtin"}, "verify": {"mode": "full"}, "run": {"steps": 3, "repeats": 3}}
    base = trial(EVEN, config=full)
    result = compared(base, head("builtin"))
    assert ([row.head.trial_id for row in result.rows], result.missing, result.added) == (["other"], (), ())
    with pytest.raises(IncomparableError, match="no configuration is in both"):
        compared(base, head("ddp"))


def test_axes_match_in_whatever_order_they_were_written() -> None:
    base, head = trial(EVEN, axes={"a": 1, "b": 2}), trial(EVEN, axes={"b": 2, "a": 1})
    assert base[0].trial_id != head[0].trial_id
    assert [row.answer for row in compared(base, head).rows] == ["pass"]


def test_another_sweep_is_incomparable() -> None:
    with pytest.raises(IncomparableError, match=r"base has 1 of sweep example, head has 1 of sweep example"):
        compared(trial(EVEN, axes={"a": 1}), trial(EVEN, axes={"b": 1}))


def test_an_unknown_machine_is_unlike_every_other() -> None:
    unknown = replace(results(trial(EVEN)), source=Source("loose file"))
    with pytest.raises(IncomparableError, match="loose file: machine unknown"):
        compare_runs(unknown, unknown, Settings())


def test_disturbances_are_told() -> None:
    """The yardstick was disturbed, too, so the repeats count."""
    disturbed = [
        replace(item, disturbance=Disturbance(0.41, throttled=2), repeat=item.repeat + 10)
        for item in trial(EVEN[:2])
    ]
    comparison = compared(trial(EVEN), [*trial(EVEN), *disturbed])
    assert (comparison.rows[0].answer, comparison.exit_code) == ("pass", ExitCode.PASS)
    assert comparison.warnings == [
        "head: the machine was loaded in 2 of 8 repeats",
        "head: the CPU was throttled for heat in 2 of 8 repeats",
    ]


def crashing(crashes: int, of: int) -> list[Record]:
    fine = trial((EVEN * 20)[: of - crashes], verdict="unchecked")
    return [*fine, *(record(repeat=100 + i, outcome="crashed") for i in range(crashes))]


@pytest.mark.parametrize(
    ("base", "head", "answer"),
    [
        ((1, 7), (7, 7), "failed"),  # seen: pass, 0
        ((1, 7), (2, 7), "pass"),
        ((0, 7), (1, 7), "failed"),
        ((7, 7), (7, 7), "unmeasured"),
    ],
)
def test_crash_rates_are_compared_exactly(base: tuple[int, int], head: tuple[int, int], answer: str) -> None:
    comparison = compared(crashing(*base), crashing(*head))
    assert comparison.rows[0].answer == answer
    assert (comparison.rows[0].step_time is None) == ((7, 7) in (base, head)), "no repeat, no figure"
    assert comparison.exit_code == (ExitCode.TRIALS_FAILED if answer == "failed" else ExitCode.PASS)


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [("oom", "crashed", "failed"), ("oom", "oom", "unmeasured"), ("invalid", "crashed", "failed"),
     ("crashed", "invalid", "unmeasured"), ("ok", "invalid", "failed")],
)  # fmt: skip
def test_another_way_to_fail_is_a_failure(before: Any, after: Any, answer: str) -> None:
    off = {"engine": {}, "verify": {"mode": "off"}, "run": {}}
    comparison = compared(*([record(outcome=outcome, config=off)] for outcome in (before, after)))
    assert comparison.rows[0].answer == answer
    assert comparison.exit_code == (ExitCode.TRIALS_FAILED if answer == "failed" else ExitCode.PASS)


def test_a_full_verdict_that_is_missing_is_not_a_pass() -> None:
    config = {"engine": {"engine": "builtin"}, "verify": {"mode": "full"}, "run": {}}
    base, head = (trial(EVEN, verdict="unchecked", config=config) for _ in "12")
    comparison = compared(base, head)
    assert (comparison.rows[0].answer, comparison.exit_code) == ("unchecked", ExitCode.INCONCLUSIVE)
    off = {**config, "verify": {"mode": "off"}}
    assert compared(*(trial(EVEN, verdict="unchecked", config=off) for _ in "12")).exit_code == ExitCode.PASS


@pytest.mark.parametrize(
    ("base", "head", "says"),
    [
        (["A", "B"], ["A"], "ran on: A and B, A"),
        (["A"], ["A"], None),
        (["A", None], ["A"], None),
    ],
)
def test_where_repeats_ran_counts_more_than_where_they_were_started(
    base: list[str | None], head: list[str | None], says: str | None
) -> None:
    def on(machines: list[str | None], name: str) -> RunResults:
        repeats = [replace(r, machine=machines[r.repeat % len(machines)]) for r in trial(EVEN)]
        return results(repeats, name)

    if says is None:
        assert compare_runs(on(base, "base"), on(head, "head"), Settings()).unlike == ()
    else:
        with pytest.raises(IncomparableError, match=says):
            compare_runs(on(base, "base"), on(head, "head"), Settings())


def test_equal_times_have_no_change_at_all() -> None:
    comparison = compared(three(), three())
    assert [decision.change for _, decision in comparison.timed] == [0.0] * 3
    assert comparison.geometric_mean == 0.0
    assert comparison.worst is comparison.best is comparison.rows[0]
    assert "-" not in texts.interval(comparison.timed[0][1]).split("[")[0]
