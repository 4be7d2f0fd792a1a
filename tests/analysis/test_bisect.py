"""The first bad of 32 revisions in five probes; noisy answers are repeated, what cannot run is skipped."""

import random
from dataclasses import replace

import pytest

from zbench.analysis.bisect import SETTINGS, Fault, Finding, bisect, fault_of, judged
from zbench.analysis.compare import Comparison, PairedData, compare_runs
from zbench.analysis.paired import Control
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.record.record import Record

from .synthetic import results, trial

REVISIONS = [f"c{i}" for i in range(33)]


@pytest.mark.parametrize("first_bad", range(1, 33))
def test_every_place_is_found_in_five_probes(first_bad: int) -> None:
    found = bisect(REVISIONS, lambda name: "bad" if int(name[1:]) >= first_bad else "good", {})
    assert found.first_bad == f"c{first_bad}"
    assert found.probes <= 5


@pytest.mark.parametrize("seed", range(10))
def test_undecided_answers_are_repeated_and_never_guessed(seed: int) -> None:
    coin = random.Random(seed)

    def probe(name: str) -> Finding:
        return "undecided" if coin.random() < 0.3 else "bad" if int(name[1:]) >= 20 else "good"

    found = bisect(REVISIONS, probe, {}, attempts=20)
    assert found.first_bad == "c20"


def test_an_undecided_revision_is_asked_three_times_and_then_left_open() -> None:
    asked: list[str] = []

    def probe(name: str) -> Finding:
        asked.append(name)
        return "undecided"

    found = bisect(["good", "unclear", "bad"], probe, {})
    assert asked == ["unclear"] * 3
    assert (found.candidates, found.first_bad) == (("unclear", "bad"), None)


def test_what_does_not_build_is_skipped_and_left_open_only_where_it_matters() -> None:
    def probe(name: str) -> Finding:
        return "skip" if name in ("c16", "c19", "c8") else "bad" if int(name[1:]) >= 20 else "good"

    assert bisect(REVISIONS, probe, {}).candidates == ("c19", "c20")


def test_an_interrupted_search_goes_on() -> None:
    asked: list[str] = []

    def probe(name: str) -> Finding:
        asked.append(name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return "bad" if int(name[1:]) >= 20 else "good"

    known: dict[str, Finding] = {}
    with pytest.raises(KeyboardInterrupt):
        bisect(REVISIONS, probe, known)
    found = bisect(REVISIONS, probe, known)
    assert found.first_bad == "c20"
    assert len(asked) == 6
    assert asked[2] == asked[3], "what was not answered is asked again, nothing else is"
    assert len(set(asked)) == 5


def compared(head: list[Record]) -> Comparison:
    """Return a comparison with GOOD whose step times were decided; the blocks are made up."""
    found = compare_runs(results(GOOD), results(head, "head"), Settings(run_noise=0.001))
    blocks = {row.base.trial_id: (0.69, 0.7) for row in found.rows}
    return replace(found, paired=PairedData(blocks, Control(0.01, 0.0, 2), exact_only=False))


STEPS = [0.1, 0.1001, 0.0999, 0.1, 0.1]
GOOD = trial(STEPS)
SLOWER = trial([2 * step for step in STEPS])
NOISY = trial([0.1, 0.3, 0.1, 0.3, 0.1])
BIGGER = trial(STEPS, peak=2_000_000)
WRONG = trial(STEPS, verdict="wrong")
UNCHECKED = trial(STEPS, verdict="unchecked")
CRASHED = trial(STEPS, outcome="crashed")
TIME = Fault("regression", blocks={row.base.trial_id: (0.69, 0.7) for row in compared(GOOD).rows})
PEAK = Fault("regression", frozenset({"peak_device_bytes"}))


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (GOOD, None),
        (NOISY, None),
        (SLOWER, TIME),
        (WRONG, Fault("incorrect")),
        (CRASHED, Fault("failed")),
    ],
)
def test_the_fault_of_the_bad_revision_is_what_is_sought(head: list[Record], fault: Fault | None) -> None:
    assert fault_of(compared(head)) == fault


def test_exact_figures_are_sought_by_name_and_without_a_clock() -> None:
    found = fault_of(compared(BIGGER))
    assert found is not None
    assert "peak_device_bytes" in found.metrics
    assert not found.needs_clock
    assert TIME.needs_clock


@pytest.mark.parametrize(
    ("head", "fault", "finding"),
    [
        (SLOWER, TIME, "bad"),
        (GOOD, TIME, "good"),
        (NOISY, TIME, "undecided"),
        (CRASHED, TIME, "undecided"),  # seen: a revision whose repeats fail was called good
        (WRONG, TIME, "good"),
        (BIGGER, TIME, "good"),
        (BIGGER, PEAK, "bad"),
        (SLOWER, PEAK, "good"),
        (NOISY, PEAK, "good"),
        (CRASHED, PEAK, "undecided"),
        (WRONG, Fault("incorrect"), "bad"),
        (SLOWER, Fault("incorrect"), "good"),
        (NOISY, Fault("incorrect"), "good"),
        (UNCHECKED, Fault("incorrect"), "undecided"),
        (CRASHED, Fault("incorrect"), "undecided"),
        (CRASHED, Fault("failed"), "bad"),
        (WRONG, Fault("failed"), "good"),
    ],
)
def test_only_the_fault_that_is_sought_counts(head: list[Record], fault: Fault, finding: Finding) -> None:
    assert judged(compared(head).rows, fault) == finding


def test_any_slowdown_that_is_sure_is_sought() -> None:
    """Whoever names BAD knows that it is slower; a comparison lets one percent pass."""
    good, head = results(GOOD), results(trial([1.01 * step for step in STEPS]), "head")
    sought, accepted = (
        compare_runs(good, head, replace(settings, run_noise=0.0001)).rows[0].answer
        for settings in (SETTINGS, Settings(thresholds=PAIRED_THRESHOLDS))
    )
    assert (sought, accepted) == ("regression", "pass")
