"""A report with everything in it, and one whose every text tries to be markup."""

from dataclasses import replace
from typing import Any

from tests.analysis.synthetic import record, results, trial
from zbench.analysis.compare import compare_runs
from zbench.analysis.ranking import rank
from zbench.analysis.settings import Settings
from zbench.record.record import Record
from zbench.report.html import charts
from zbench.report.html.content import Report, report_of
from zbench.report.html.drawing import Picture
from zbench.spec.sweep import ObjectiveSpec

HOSTILE = (
    "</text></svg></style><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\">"
)
LIMIT = 9_500_000  # bytes; the first configuration, the fastest, needs more
STEPS = [0.1, 0.103, 0.098, 0.1, 0.101, 0.099]


def full(rows: int = 4) -> Report:
    """Stages with all verdicts and one that ran out of memory, compared with a baseline that was faster."""
    verdicts = ("identical", "equivalent", "drifted", "wrong")
    records: list[Record] = []
    for stage in range(rows):
        axes = {"zero_stage": stage, "offload_optimizer": "none", "reduce_bucket_size": 25_000_000}
        steps = [step * (1 + 0.1 * stage) for step in STEPS]
        peak = 10_000_000 - 900_000 * (stage % 9)
        records += map(offloaded, trial(steps, axes=axes, verdict=verdicts[stage % 4], peak=peak))
    base = [replace(item, correctness=records[0].correctness) for item in records]
    head = [*records, record(axes={"zero_stage": 99, "offload_optimizer": "cpu"}, outcome="oom")]
    run = results(head, "head", commit="c0ffee", started="2026-01-01T00:00:00+0000", run_ids=("r1",))
    comparison = compare_runs(results(base, "base"), run, Settings())
    report = report_of(run, comparison)
    objective = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": f"<= {LIMIT}"})
    ranking = rank(report.summaries, objective)
    winner = next((s for s in report.summaries if s.trial_id == ranking.recommended), None)
    shares = {"zero_stage": 0.7, "reduce_bucket_size": 0.3}
    return replace(report, importance=shares, objective=objective, winner=winner, ranking=ranking)


def pictures(report: Report) -> dict[str, Picture]:
    """Return the pictures of a report by name."""
    return {section.picture.name: section.picture for section in charts.sections(report)}


def offloaded(record: Record) -> Record:
    """Return the record with some of its bytes on the host."""
    assert record.memory is not None
    parts = {**record.memory.by_category, "moments": 500_000, "host_moments": 3_000_000}
    return replace(record, memory=replace(record.memory, by_category=parts))


def hostile() -> Report:
    """Every string that a file can bring is an attempt to get out of its place."""
    good = record(axes={HOSTILE: HOSTILE}, step_s=0.1)
    assert good.timing is not None
    assert good.memory is not None
    timing = replace(good.timing, phases={HOSTILE: 0.1})
    memory = replace(good.memory, by_category={HOSTILE: 1000})
    good = replace(good, trial_id=HOSTILE, timing=timing, memory=memory, warnings=[HOSTILE])
    failed = record(axes={"other": HOSTILE}, outcome="crashed")
    assert failed.error is not None
    failed = replace(failed, error=replace(failed.error, message=HOSTILE, log=HOSTILE))
    source: dict[str, Any] = dict.fromkeys(("sweep", "commit", "started"), HOSTILE)
    source["facts"] = {"cpu": HOSTILE, "gpus": [HOSTILE], "torch": HOSTILE}
    run = results([good, failed], HOSTILE, run_ids=(HOSTILE,), **source)
    return replace(report_of(run, compare_runs(run, run, Settings())), importance={HOSTILE: 1.0})
