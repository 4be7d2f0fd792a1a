"""The table: best first and marked, every configuration with its verdict, readable at any width."""

import io
import math
import re
from dataclasses import replace

import pytest

from tests.making import make_record
from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing, VerdictName
from zbench.report import text
from zbench.report.screen import Screen
from zbench.report.table import print_results
from zbench.spec.sweep import ObjectiveSpec

FASTEST = ObjectiveSpec(maximize=["tokens_per_s"])


def record(stage: int, rate: float, verdict: VerdictName = "identical", repeat: int = 0, **changes) -> Record:
    fields = {
        "trial_id": f"id{stage}",
        "axes": {"zero_stage": stage, "reduce_bucket_size": 5_000_000},
        "config": {},
        "timing": Timing([64 / rate], 64 / rate, rate, rate),
        "memory": MemoryPeaks(20 << 20, 0, 5000),
        "correctness": Correctness(verdict, 1.04),
    }
    return make_record(repeat=repeat, rate=rate, **(fields | changes))


def failed(stage: int, outcome: str, message: str, log: str | None = None, **changes) -> Record:
    error = Failure(outcome, message, log)
    return record(stage, 1.0, timing=None, memory=None, outcome=outcome, error=error, **changes)


def printed(records, *, width: int = 200, terminal: bool = False) -> list[str]:
    out = io.StringIO()
    print_results(Screen(file=out, width=width, force_terminal=terminal, no_color=True), records, FASTEST)
    return [line.rstrip() for line in without_styles(out.getvalue()).splitlines()]


def without_styles(output: str) -> str:
    """Return what is left on paper: no bold, no cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)


def test_the_best_is_first_and_marked():
    rates = {0: (600.0, 602.0, 598.0), 1: (1000.0, 1100.0, 1048.0)}
    lines = printed([record(s, rate, repeat=n) for s in rates for n, rate in enumerate(rates[s])])
    words = [line.split() for line in lines[:3]]
    assert [(row[0], row[-1]) for row in words] == [("trial", "slower"), ("*", "1.04"), ("id0", "%")]
    low, high = words[2][-4], words[2][-2]
    assert (words[2][-3], 30 < int(low) < 70 < int(high) < 100) == ("to", True)
    assert lines[3].startswith(
        "spread: half the range of a row's repeats over their median; verdict: identical means "
    )
    assert lines[3].endswith("; slower: than the best row, with 95 % confidence")
    assert re.fullmatch(r"  zero_stage: 0 against 1 \+7\d\.\d % \(\+[\d.]+ to \+[\d.]+\), 1 pair", lines[5])
    best = "* best zero_stage=1 reduce_bucket_size=5M: 1,048 tokens/s, peak 20 MiB, identical"
    assert lines[-1] == f"{best}; the others are at least {low} % slower"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (20, "the fastest repeat by repeat"),
        (10, "the least memory within 5 % of the fastest repeat by repeat"),
    ],
)
def test_equals_lead_together_and_one_is_recommended_with_its_reason(size, why):
    sizes, rates = (20, size, 5), ((1005.0, 995.0, 1003.0), (1000.0, 1010.0, 990.0), (500.0, 505.0, 495.0))
    lines = printed(
        record(stage, rate, repeat=n, memory=MemoryPeaks(sizes[stage] << 20, 0, 1))
        for stage in range(3)
        for n, rate in enumerate(rates[stage])
    )
    assert sorted(line.split()[0] for line in lines[1:4]) == ["id2", "≈", "≈*"]
    assert lines[4].startswith("≈: may be the best; spread: ")
    chosen = next(line.split()[1] for line in lines[1:4] if line.startswith("≈*"))
    assert lines[-1].startswith(f"≈* recommended zero_stage={chosen[-1]} ")
    assert lines[-1].endswith(f" % slower than whatever is best (of the 2 that may be the best, {why})")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([failed(0, "crashed", "why")], "no best: no configuration finished without errors"),
        ([record(0, 9.0, "unchecked")], "no best: nothing was verified"),
        ([record(0, 9.0, "drifted")], "no best: no configuration is both correct and within the constraints"),
    ],
)
def test_where_there_is_no_best_it_says_why(records, words):
    assert any(line.startswith(words) for line in printed(records))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_figure_is_shown_or_named_as_left_out(width):
    records = [record(stage, 1e5 + stage, memory=MemoryPeaks(3 << 30, 2 << 30, 1)) for stage in range(4)]
    lines = printed(records, width=width, terminal=True)
    content = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert content.count("identical") >= 4
    assert "100,003" in content
    assert sum(line.startswith("≈") for line in lines) >= 1
    for name, figure in (
        ("peak device", "3 GiB"),
        ("peak host", "2 GiB"),
        ("median step", "640 us"),
        ("error ratio", "1.04"),
    ):
        left_out = "no room for" in content and name in content.split("no room for")[1]
        assert (content.count(figure) >= 4) != left_out, name
    assert ("zbench show --verbose" in content) == ("no room for" in content)


@pytest.mark.parametrize("width", [40])
def test_a_pipe_loses_no_figure_if_columns_is_small(width):
    records = [record(stage, 1e5 + stage, memory=MemoryPeaks(3 << 30, 2 << 30, 1)) for stage in range(4)]
    content = " ".join(" ".join(printed(records, width=width)).split())
    for figure in ("2 GiB", "3 GiB", "640 us", "1.04", "identical"):
        assert content.count(figure) >= 4, figure
    assert "no room" not in content
    assert "…" not in content


def test_warnings_are_counted_by_kind():
    records = [record(n, 9.0, warnings=[f"loaded: {n} %", "torn: all"]) for n in range(3)]
    lines = printed(records)
    assert "warning loaded: 2 % (up to this, in 3 configurations)" in lines
    assert "warning torn: all (3 configurations)" in lines


def test_one_reason_of_many_failures_is_told_once():
    records = [failed(n, "crashed", f"rank {n}: no such file", f"logs/{n}") for n in range(2)]
    lines = printed([*records, failed(3, "crashed", "rank 0: another")])
    point = "reduce_bucket_size=5M"
    assert f"crashed zero_stage=0 {point} and 1 more: rank 0: no such file (log: logs/0)" in lines
    assert f"crashed zero_stage=3 {point}: rank 0: another" in lines


def test_values_read_as_a_sweep_file_spells_them():
    values = (5_000_000, 9_999, 10_000, 12_960, 2_500_000, 25_000_020, 3 * 10**9, 2.5, "none", None, True)
    assert [text.value_text(value) for value in values] == [
        "5M", "9999", "10k", "12960", "2500k", "25000020", "3G", "2.5", "none", "default", "true",
    ]  # fmt: skip
    assert text.axes_text({}) == "(the one configuration)"
    group = {"*.bias": {"weight_decay": 0.1, "frozen": False}}
    assert text.value_text(group) == "*.bias.weight_decay:0.1,*.bias.frozen:false"


def test_a_trial_that_a_search_ended_is_pruned():
    pruned = failed(2, "timeout", "pruned after 2 of 8 steps").error
    records = [record(0, 900.0), failed(1, "timeout", "no end within 60 s")]
    slow = record(2, 1.0, timing=None, memory=None, outcome="timeout", error=replace(pruned, kind="pruned"))
    lines = printed([*records, slow])
    assert [line.split()[3] for line in lines[2:4]] == ["timeout", "pruned"]
    assert lines[-3].startswith("timeout zero_stage=1")
    assert lines[-2].startswith("pruned zero_stage=2")


def test_the_repeat_farthest_from_the_reference_gives_the_difference() -> None:
    near, far = Correctness("drifted", 2.0), Correctness("drifted", 9.0, first_differing_step=3)
    lines = printed(record(0, 9.0, repeat=n, correctness=one) for n, one in enumerate((near, far)))
    assert lines[-2].endswith(": error ratio 9.00, differs from step 3 on")


def test_a_verdict_says_how_many_steps_it_covers() -> None:
    covered = [Correctness("equivalent", 1.0, checked_steps=n, steps=60) for n in (40, 60)]
    lines = printed(record(0, 9.0, repeat=n, correctness=one) for n, one in enumerate(covered))
    assert "equivalent, 40 of 60 steps" in lines[1]
    assert lines[-1].endswith("equivalent, 40 of 60 steps")
    (line, *_) = printed([record(0, 9.0, correctness=covered[1])])[1:]
    assert "equivalent " in line
    assert "steps" not in line


def test_bars_rise_from_the_lowest_value_to_the_highest() -> None:
    assert text.sparkline([1, 2, 3]) == "▁▅█"
    assert text.sparkline([5, 5]) == "▄▄", "equal values are in the middle"
    assert text.sparkline(range(100), width=8) == "▁▂▃▄▅▆▇█"
    assert text.sparkline([1, math.nan, 3]) == "▁ █", "a gap"
    assert len(text.sparkline(range(100))) == 40, "the last values are shown"


def test_a_table_of_thousands_shows_the_best():
    records = [record(stage, float(stage)) for stage in range(1, 504)]
    lines = printed(records)
    assert "id503" in lines[1]
    assert not any("id3 " in line for line in lines), "the three slowest are left out"
    assert "3 more configurations: `zbench show --format csv` has all" in lines
