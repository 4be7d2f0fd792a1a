"""Figures that need no test: any growth is real, and a figure that was not counted decides nothing."""

from dataclasses import replace

import pytest

from zbench.analysis.exact import ExactChange, exact_changes, exact_details
from zbench.record.record import Record, Traffic
from zbench.record.summary import ConfigSummary, summarize

from .synthetic import record


def side(*records: Record) -> ConfigSummary:
    (summary,) = summarize(replace(one, repeat=repeat) for repeat, one in enumerate(records))
    return summary


def answers(base: ConfigSummary, head: ConfigSummary) -> dict[str, str]:
    return {one.metric: one.answer for one in exact_changes(base, head, {})}


def divided(**categories: int) -> Record:
    """Return a record whose memory is divided up like this."""
    one = record()
    assert one.memory is not None
    return replace(one, memory=replace(one.memory, by_category=categories))


@pytest.mark.parametrize(
    ("base", "head", "answer"),
    [(True, True, "regression"), (True, False, "estimated"), (False, True, "estimated")],
)
def test_bytes_that_one_side_estimated_have_a_wide_margin(base: bool, head: bool, answer: str) -> None:
    def peak_of(*peaks: int, before: int = 1_000_000) -> str:
        repeats = [record(exact=head, peak=peak) for peak in peaks]
        return answers(side(record(exact=base, peak=before)), side(*repeats))["peak_device_bytes"]

    assert peak_of(1_500_000) == answer
    assert peak_of(1_500_001) == "regression", "as one that was counted"
    assert peak_of(3_000_000, 1_000_000) == "suspected"
    assert peak_of(1, before=0) == answer, "any growth of nothing is above every share of it"


@pytest.mark.parametrize("counted", [[True, False], [False, True]], ids=["lost", "new"])
def test_a_figure_that_one_side_lacks_is_unchecked(counted: list[bool]) -> None:
    full = replace(record(), counts={"operators": 5})
    bare = replace(full, memory=None, counts={})
    base, head = (side(full if has else bare) for has in counted)
    figures = answers(base, head)
    assert figures["peak_device_bytes"] == figures["operators"] == "unchecked"
    assert figures["flops"] == "absent"
    assert answers(base, side(record(outcome="oom")))["operators"] == "absent", "a failure is one already"


def test_a_category_that_one_side_lacks_has_no_bytes_there() -> None:
    without, having = side(divided(parameters=100)), side(divided(parameters=100, buffers=5))
    assert exact_details(without, having, {}) == (ExactChange("memory.buffers", 0, 5, "regression"),)
    assert exact_details(having, without, {}) == (ExactChange("memory.buffers", 5, 0, "lower"),)


def test_memory_that_one_side_did_not_divide_up_is_unchecked() -> None:
    plain = replace(record(), memory=None)
    having = divided(parameters=100)
    assert exact_details(side(divided()), side(having), {}) == (
        ExactChange("memory.parameters", None, 100, "unchecked"),
    )
    assert exact_details(side(having, plain), side(having, plain, divided()), {}) == ()


def test_a_collective_that_one_side_lacks_is_no_regression() -> None:
    one = record()
    gathers = {**one.traffic, "all_gather": Traffic(1, 50)}
    assert exact_details(side(one), side(replace(one, traffic=gathers)), {}) == (
        ExactChange("traffic.all_gather.bytes", 0, 50, "higher"),
        ExactChange("traffic.all_gather.calls", 0, 1, "higher"),
    )
