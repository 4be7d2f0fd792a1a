"""The best is announced after fresh repeats against its runner-up; the other findings, and their document."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from optuna.trial import FrozenTrial

from tests.making import make_record, make_trial
from zbench.record.record import Correctness, MemoryPeaks, Record, VerdictName
from zbench.record.summary import summarize
from zbench.spec.sweep import ObjectiveSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.findings import (
    Final,
    SearchOutcome,
    importance,
    nearest_miss,
    search_document,
    settle,
)
from zbench.tune.space import Point, Space

from .fakes import seen, small_sweep

FASTEST = ObjectiveSpec(maximize=["tokens_per_s"])


def record_of(trial: TrialSpec, axes: dict[str, Any], repeat: int, rate: float, **changes: Any) -> Record:
    return make_record(trial.trial_id, repeat, rate, axes=axes, config=trial.config(), **changes)


def of_stage(stage: int, rate: float, repeat: int = 0, verdict: VerdictName = "identical") -> Record:
    trial = make_trial({"zero_stage": stage})
    return record_of(trial, {"zero_stage": stage}, repeat, rate, verdict=verdict)


class Bench:
    """Measures a stage at its true rates and keeps the records; changes: the faults of a stage's records."""

    def __init__(
        self,
        seen: list[Record],
        true_rates: dict[int, list[float]],
        changes: dict[int, dict[str, Any]] | None = None,
    ) -> None:
        self.records = seen
        self._rates = true_rates
        self._changes = changes or {}
        self.measured: list[tuple[int, list[int]]] = []

    def measure(self, trials: Sequence[TrialSpec], repeat: int) -> None:
        stages = [trial.engine.zero_stage for trial in trials]
        self.measured.append((repeat, stages))
        for stage in stages:
            rates = self._rates[stage]
            record = of_stage(stage, rates[(repeat - 1) % len(rates)], repeat)
            self.records.append(replace(record, **self._changes.get(stage, {})))

    def settle(self, objective: ObjectiveSpec = FASTEST, repeats: int = 3) -> Final:
        return settle(lambda: self.records, objective, self.measure, repeats=repeats)


def stage_of(final: Final) -> int | None:
    return None if final.best is None else int(final.best.axes["zero_stage"])


@pytest.mark.parametrize(
    ("others", "together"),
    [([50, 40], [0, 1]), ([99, 96, 97], [0, 1, 3, 2])],
    ids=["the first is far ahead", "four near"],
)
def test_the_first_and_those_near_it_get_fresh_repeats_together(
    others: list[float], together: list[int]
) -> None:
    """So the one that is recommended has as many repeats as its rivals, of the same heats."""
    rates = dict(enumerate([100.0, *others]))
    bench = Bench(
        [of_stage(stage, rate) for stage, rate in rates.items()], {s: [r] for s, r in rates.items()}
    )
    final = bench.settle()
    assert stage_of(final) == 0
    assert bench.measured == [(n, together) for n in (1, 2, 3)]
    assert final.lead == pytest.approx(100 / rates[1] - 1)


@pytest.mark.parametrize(
    ("rates", "fresh", "best", "lead"),
    [
        ([130, 95], {0: [80.0], 1: [95.0]}, 1, 95 / 80 - 1),
        ([300, 95], {0: [100.0, 110.0, 121.0], 1: [95.0]}, 0, 110 / 95 - 1),
        ([100, 99], {0: [100.0, 90.0, 120.0], 1: [80.0, 100.0, 120.0]}, 0, 1.125 ** (1 / 3) - 1),
    ],
    ids=["a lucky leader", "fresh repeats alone", "a round is lost"],
)
def test_the_lead_is_of_all_fresh_repeats_and_no_others(
    rates: list[float], fresh: dict[int, list[float]], best: int, lead: float
) -> None:
    final = Bench([of_stage(stage, rate) for stage, rate in enumerate(rates)], fresh).settle()
    assert stage_of(final) == best
    assert final.lead == pytest.approx(lead)


def test_a_third_that_comes_up_is_measured_too() -> None:
    bench = Bench([of_stage(0, 130), of_stage(1, 120), of_stage(2, 110)], {0: [80.0], 1: [81.0], 2: [109.0]})
    final = bench.settle()
    assert stage_of(final) == 2
    assert bench.measured == [(n, stages) for stages in ([0, 1], [2]) for n in (1, 2, 3)]


def test_one_of_which_fresh_repeats_are_missing_is_no_best() -> None:
    seen = [of_stage(0, 100), of_stage(1, 95), of_stage(2, 50), of_stage(2, 500, repeat=1)]
    final = Bench(seen, {0: [100.0], 1: [95.0]}).settle()
    assert stage_of(final) == 0


def test_a_lead_is_positive_where_less_is_better() -> None:
    bench = Bench([of_stage(0, 100), of_stage(1, 80)], {0: [100.0], 1: [80.0]})
    final = bench.settle(ObjectiveSpec(minimize=["median_step_s"]))
    assert final.lead == pytest.approx(100 / 80 - 1)


def test_one_that_turns_out_wrong_is_no_best() -> None:
    wrong = {0: {"correctness": Correctness(verdict="wrong")}}
    seen = [of_stage(0, 100), of_stage(1, 90), of_stage(2, 80)]
    assert stage_of(Bench(seen, {0: [100.0], 1: [90.0], 2: [80.0]}, wrong).settle()) == 1


def test_a_resumed_round_measures_only_what_is_missing() -> None:
    seen = [of_stage(0, 100), of_stage(1, 95), of_stage(0, 100, 1), of_stage(1, 95, 1), of_stage(0, 100, 2)]
    bench = Bench(seen, {0: [100.0], 1: [95.0]})
    bench.settle()
    assert bench.measured == [(2, [1]), (3, [0, 1])]


def test_a_single_feasible_configuration_is_measured_again_alone() -> None:
    bench = Bench([of_stage(0, 100), of_stage(1, 200, verdict="wrong")], {0: [100.0]})
    final = bench.settle(repeats=1)
    assert stage_of(final) == 0
    assert final.runner_up is None
    assert bench.measured == [(1, [0]), (2, [0])], "twice at least"


def test_without_a_feasible_configuration_there_is_no_best() -> None:
    bench = Bench([of_stage(0, 100, verdict="drifted")], {})
    assert bench.settle() == Final(None)
    assert bench.measured == []


def repeats(stage: int, rate: float) -> list[Record]:
    return [of_stage(stage, rate + 0.1 * repeat, repeat) for repeat in range(6)]


def document(records: list[Record], best: int) -> dict[str, object]:
    """Return the document of a search whose final round named this stage the best."""
    by_stage = {summary.axes["zero_stage"]: summary for summary in summarize(records)}
    final = Final(by_stage[best], by_stage[1 - best], 0.5)
    return search_document(SearchOutcome(final, "as asked", "study"), FASTEST, records)


def test_a_best_that_the_ranking_names_too_is_separated() -> None:
    records = [*repeats(0, 100.0), *repeats(1, 50.0)]
    findings = document(records, best=0)
    best = records[0].trial_id
    expected = {"schema_version": 1, "best": best, "separated": True, "nearest_miss": None}
    assert expected.items() <= findings.items()


def test_a_best_that_no_ranking_names_is_not_separated() -> None:
    assert document([*repeats(0, 100.0), *repeats(1, 50.0)], best=1)["separated"] is False
    alike = document([*repeats(0, 100.0), *repeats(1, 100.0)], best=0)
    assert alike["separated"] is False
    assert len(alike["indistinguishable"]) == 2  # type: ignore[arg-type]


def test_the_nearest_miss_is_named_with_its_obstacle() -> None:
    bounded = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 1"})
    assert nearest_miss([], bounded) is None
    large, larger = (replace(of_stage(n, 100.0), memory=MemoryPeaks(300 + n, 0, 0)) for n in (0, 1))
    untried = replace(of_stage(2, 100.0), outcome="invalid")
    miss = nearest_miss(summarize([untried, larger, large]), bounded)
    assert miss is not None
    assert miss["trial_id"] == large.trial_id
    assert miss["obstacles"] == ["peak_device_bytes <= 1 B (has 300 B)"]


AXES = {"zero_stage": [0, 1, 2], "overlap_comm": [True, False], "reduce_bucket_size": [10, 100, 1000]}
SPACE = Space(small_sweep(axes=AXES))


def history(value_of: Callable[[Point], float], count: int = 18) -> list[FrozenTrial]:
    return [seen(SPACE, point, float(value_of(point))) for point in (SPACE.points() or [])[:count]]


def test_the_axis_that_moves_the_objective_leads() -> None:
    shares = importance(history(lambda p: 10 * p["zero_stage"] + p["overlap_comm"]), "maximize")
    assert next(iter(shares)) == "zero_stage"
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["reduce_bucket_size"] < 0.2
