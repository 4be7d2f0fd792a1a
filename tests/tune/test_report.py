"""The findings of a search as they are kept and printed."""

from zbench.record.record import Record
from zbench.record.summary import summarize
from zbench.spec.sweep import ObjectiveSpec
from zbench.tune.final import Final
from zbench.tune.report import nearest_miss, search_document
from zbench.tune.session import SearchOutcome

from .test_final import FASTEST, of_stage


def repeats(stage: int, rate: float) -> list[Record]:
    return [of_stage(stage, rate + 0.1 * repeat, repeat) for repeat in range(6)]


def document(records: list[Record], best: int) -> dict[str, object]:
    """Return the document of a search whose final round named this stage the best."""
    by_stage = {summary.axes["zero_stage"]: summary for summary in summarize(records)}
    final = Final(by_stage[best], by_stage[1 - best], 0.5, True)
    return search_document(SearchOutcome(final, "as asked", "study"), FASTEST, records)


def test_a_best_that_the_ranking_names_too_is_separated() -> None:
    records = [*repeats(0, 100.0), *repeats(1, 50.0)]
    found = document(records, best=0)
    assert found["schema_version"] == 1
    assert found["best"] == records[0].trial_id
    assert found["separated"] is True
    assert found["nearest_miss"] is None


def test_a_best_that_the_ranking_does_not_name_is_not_separated() -> None:
    assert document([*repeats(0, 100.0), *repeats(1, 50.0)], best=1)["separated"] is False
    alike = document([*repeats(0, 100.0), *repeats(1, 100.0)], best=0)
    assert alike["separated"] is False
    assert len(alike["indistinguishable"]) == 2  # type: ignore[arg-type]


def test_where_nothing_was_tried_nothing_nearly_fits() -> None:
    invalid = of_stage(0, 100.0)
    bounded = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 1"})
    assert nearest_miss([], bounded) is None
    miss = nearest_miss(summarize([invalid]), bounded)
    assert miss is not None
    assert miss["trial_id"] == invalid.trial_id
