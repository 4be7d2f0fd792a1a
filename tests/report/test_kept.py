"""What the terminal shows of a run, whole: a change shows in tests/report/kept."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.synthetic import results, trial
from tests.keeping import check, drawn
from zbench.analysis.history import Change, Series, Visit
from zbench.record.record import Correctness, MemoryPeaks, Record, Timing, Traffic
from zbench.record.summary import summarize
from zbench.report.detail import print_configuration
from zbench.report.html.timelines import trend
from zbench.report.screen import Screen
from zbench.report.table import print_results, print_search
from zbench.spec.sweep import ObjectiveSpec

from .test_table import failed, record

KEPT = Path(__file__).parent / "kept"
WRONG = Correctness("wrong", 5000.0, 0.25, 40_000, "blocks.0.weight", 2, 0.5, 0.125)


def measured(repeat: int) -> Record:
    """Return a repeat with every figure that a record can have."""
    step = 0.1 * (1 + repeat)
    timing = Timing([step], step, 64 / step, 2 / step, 1.5, {"forward": step / 4, "backward": step / 2})
    timing = replace(timing, mfu=0.25 + repeat / 10)
    memory = MemoryPeaks(
        20 << 20, 4 << 20, 50 << 20, {"parameters": 8 << 20, "activations": 12 << 20}, repeat > 0
    )
    return record(
        1, 1.0, repeat=repeat, timing=timing, memory=memory, correctness=WRONG,
        traffic={"all_reduce": Traffic(1, 4096), "all_gather": Traffic(3, 1 << 20)}, losses=[2.5, 2.0, 1.25],
        environment={"torch": "2.13.0"}, warnings=["loaded: 40 %"],
    )  # fmt: skip


def shown(paint: Callable[[Screen], None], *, width: int = 100, terminal: bool = False) -> str:
    out = io.StringIO()
    paint(Screen(file=out, width=width, force_terminal=terminal, _environ={"TERM": "xterm-256color"}))
    return out.getvalue()


RUN = [
    *(measured(repeat) for repeat in range(2)),
    *(
        record(2, rate, repeat=n, memory=MemoryPeaks(30 << 20, 1 << 20, 1))
        for n, rate in enumerate([90.0, 110.0])
    ),
    record(3, 500.0, memory=MemoryPeaks(2 << 30, 0, 1)),
    failed(4, "crashed", "rank 1: it fell over", "logs/x"),
    failed(5, "oom", "no room"),
    failed(6, "invalid", "cannot be"),
]
LIMIT = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 1Gi"})


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [80, 160])
def test_the_table_of_a_run(width: int, terminal: bool) -> None:
    text = shown(lambda screen: print_results(screen, RUN, LIMIT), width=width, terminal=terminal)
    check(KEPT / f"table-{width}-{'terminal' if terminal else 'pipe'}.txt", text)


def test_one_configuration_in_full() -> None:
    first, *_, crashed, _, _ = summarize(RUN)
    bare = summarize([record(2, 90.0)])[0]
    text = "".join(shown(lambda screen, s=s: print_configuration(screen, s)) for s in (first, crashed, bare))
    check(KEPT / "configuration.txt", text)


def test_a_configuration_is_as_long_on_a_narrow_screen() -> None:
    first, *_ = summarize(RUN)
    texts = [shown(lambda screen: print_configuration(screen, first), width=width) for width in (20, 200)]
    assert texts[0] == texts[1]


SEARCH = {
    "stopped": "all 6 points were tried",
    "best": "id1",
    "pareto": ["id1", "id2", "gone"],
    "nearest_miss": {"axes": {"zero_stage": 3}, "obstacles": ["too large", "too slow"]},
    "importance": {"zero_stage": 0.75, "reduce_bucket_size": 0.25},
    "hopeless": [{"point": {"zero_stage": n}, "reason": f"needs {n} GiB"} for n in range(7)],
}


def findings(width: int = 100, **changes: object) -> str:
    """Return what is printed of SEARCH with these changes."""
    return shown(lambda screen: print_search(screen, SEARCH | changes, RUN), width=width)


@pytest.mark.parametrize("best", ["id1", None])
def test_the_findings_of_a_search(best: str | None) -> None:
    check(KEPT / f"search-{best}.txt", findings(best=best))


def test_a_history_with_a_change_of_level() -> None:
    values = [0.1, 0.102, 0.099, 0.13, 0.131, 0.129]
    visits = tuple(
        Visit(f"run{n}", None, f"{n}{'c0ffee' * 3}", value, 0.99 * value, 1.01 * value)
        for n, value in enumerate(values)
    )
    (first, *_) = results(trial(values)).trials
    changed = Series(first, {}, visits, (Change(3, 0.3, "a" * 12, "b" * 12),))
    picture = trend(changed, "mean_step_s", {visit.run_id: f"{visit.run_id}.html" for visit in visits})
    marks = "\nnarrow\n".join(drawn(picture, narrow=narrow) for narrow in (False, True))
    check(KEPT / "history.txt", f"{picture.description} {picture.height}\n{marks}")
