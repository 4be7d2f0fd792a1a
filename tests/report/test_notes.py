"""The notes below a table: which repeat they speak of, why a leader is recommended, where a log lies."""

from pathlib import Path

import pytest

from zbench.analysis.ranking import Ranking
from zbench.record.record import Correctness, MemoryPeaks
from zbench.record.summary import summarize
from zbench.report.table import log_path, notes
from zbench.report.text import short_ids, short_label
from zbench.spec.sweep import ObjectiveSpec

from .test_table import printed, record


def test_a_difference_is_that_of_the_repeat_farthest_from_the_reference() -> None:
    near, far = Correctness("drifted", 2.0), Correctness("drifted", 9.0, first_differing_step=3)
    lines = printed(record(0, 9.0, repeat=n, correctness=one) for n, one in enumerate((near, far)))
    assert lines[-1].endswith(": error ratio 9.00, differs from step 3 on")


def test_a_leader_is_recommended_for_what_distinguishes_it_from_the_other_leaders() -> None:
    sizes, rates = (20, 10, 5), ((1000.0, 1010.0, 990.0), (1005.0, 995.0, 1003.0), (500.0, 505.0, 495.0))
    lines = printed(
        record(stage, rate, repeat=n, memory=MemoryPeaks(sizes[stage] << 20, 0, 1))
        for stage in range(3)
        for n, rate in enumerate(rates[stage])
    )
    assert any(line.startswith("≈ best: one of 2 that cannot be told apart") for line in lines)
    assert any(line.startswith("  recommended for its memory: zero_stage=1") for line in lines)


def test_where_there_is_no_best_the_first_three_reasons_are_told() -> None:
    limit = ObjectiveSpec(maximize=["tokens_per_s"], subject_to={"peak_device_bytes": "<= 10Mi"})
    found = summarize(record(n, 9.0, verdict) for n, verdict in enumerate(("drifted", "wrong", "unchecked")))
    said = notes(found, limit, Ranking())[0].plain
    assert said.endswith("(drifted; peak_device_bytes <= 10 MiB (has 20 MiB); wrong)")


def test_a_log_is_named_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert log_path("logs/x", tmp_path / "run") == "run/logs/x"
    assert log_path("logs/x", None) == "logs/x"


@pytest.mark.parametrize(("length", "shown"), [(30, "a" * 30), (31, "a" * 29 + "…")])
def test_a_short_label_has_30_characters_at_most(length: int, shown: str) -> None:
    (found,) = summarize([record(0, 9.0, axes={"model": "a" * length})])
    assert short_label(found) == shown


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (["abcdefgh", "bbcdefgh"], ["abcdef", "bbcdef"]),
        (["abcdefgh", "abcdefxh"], ["abcdefg", "abcdefx"]),
        (["abcdefg", "abcdefgh"], ["abcdefg", "abcdefgh"]),
        (["ab", "ab"], ["ab", "ab"]),
        ([], []),
    ],
)
def test_ids_are_as_short_as_tells_them_apart_and_have_six_characters_or_more(
    ids: list[str], shown: list[str]
) -> None:
    found = [summary for one in ids for summary in summarize([record(0, 9.0, trial_id=one)])]
    assert short_ids(found) == shown
