"""Under load a configuration is behind only as far as its step times and its CPU time say so."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from zbench.analysis.ranking import Ranking, rank
from zbench.record.record import Disturbance, Record
from zbench.record.summary import summarize
from zbench.report.answer import answer_lines
from zbench.report.html.content import report_of
from zbench.report.html.page import render
from zbench.spec.sweep import ObjectiveSpec

from .synthetic import results
from .test_ranking import noisy, sweep

FASTEST = ObjectiveSpec(minimize=["mean_step_s"])
STEPS = noisy([0.10, 0.14, 0.14], 5, 0.005, 3)


def ranked(records: Sequence[Record]) -> Ranking:
    return rank(summarize(records), FASTEST)


def under(load: float, cpu: Sequence[Sequence[float]] | None) -> list[Record]:
    """Return repeats with the step times of `STEPS` while others took `load` of the CPU time.

    cpu: CPU seconds of a step, by configuration and repeat; None if they are not known.
    """
    records = []
    for record in sweep(STEPS):
        assert record.timing is not None
        seconds = [] if cpu is None else [cpu[record.axes["n"]][record.repeat]]
        timing = replace(record.timing, cpu_seconds=seconds)
        records.append(replace(record, timing=timing, disturbance=Disturbance(load)))
    return records


def test_a_claim_that_cpu_time_supports_stays() -> None:
    ranking = ranked(under(0.5, noisy([0.2, 0.25, 0.3], 5, 0.005, 4)))
    assert ranking.best == "tn0"
    quiet = ranked(under(0.05, None))
    assert ranking.worse_by["tn1"] < 0.3 < quiet.worse_by["tn1"], "the smaller of both leads"
    assert (ranking.effects, ranking.of_compute) == ((), {}), "they would be of step times alone"


@pytest.mark.parametrize(
    ("cpu", "leaders"),
    [
        (noisy([0.25, 0.2, 0.3], 5, 0.005, 4), {"tn0", "tn1"}),
        (noisy([0.2, 0.2, 0.3], 5, 0.05, 4), {"tn0", "tn1"}),
        (None, {"tn0", "tn1", "tn2"}),
    ],
    ids=["contradicts", "says nothing of one", "unknown"],
)
def test_without_its_support_nothing_is_best_and_the_load_is_told(
    cpu: Sequence[Sequence[float]] | None, leaders: set[str]
) -> None:
    records = under(0.74, cpu)
    ranking = ranked(records)
    assert ranking.best is None
    assert set(ranking.indistinguishable) == leaders
    assert "other processes took 74% of the CPU time" in ranking.load
    answer, remedy = answer_lines(summarize(records), FASTEST, ranking, None)
    assert answer.plain.endswith("not known: other processes took 74% of the CPU time")
    assert "when the machine is quiet" in remedy.plain
    assert ranked(under(0.02, cpu)).best == "tn0", "on a quiet machine step times decide"


def test_a_page_of_a_run_under_load_says_so_at_its_top() -> None:
    loaded, quiet = (render(report_of(results(under(load, None))), drawn=False) for load in (0.74, 0.02))
    assert "Measured under load" in loaded
    assert "other processes took 74% of the CPU time; step times alone decide nothing" in loaded
    assert "Measured under load" not in quiet
