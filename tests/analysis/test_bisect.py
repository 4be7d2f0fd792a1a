"""The first bad of 32 revisions in five probes; noisy answers are repeated, what cannot run is skipped."""

import random

import pytest

from zbench.analysis.bisect import Finding, bisect, judged

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


@pytest.mark.parametrize(
    ("answers", "finding"),
    [
        (["pass", "regression"], "bad"),
        (["pass", "pass"], "good"),
        (["pass", "suspected"], "undecided"),
        (["incorrect", "pass"], "good"),
    ],
)
def test_only_the_fault_that_is_sought_counts(answers: list[str], finding: Finding) -> None:
    assert judged(answers, "regression") == finding
