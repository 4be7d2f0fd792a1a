"""Like GOOD or like BAD: decided with blocks that prove no equality, wrong at the nominal rate."""

import math
from dataclasses import replace

import numpy as np
import pytest

from zbench.analysis.bisect import LikeGoodOrBad
from zbench.analysis.decision import Answer, Decision, Levels, Paired, RunNoise, Unpaired, claim_p
from zbench.analysis.measurement import Plan

from .machine import Machine
from .test_measurement import measured

ALPHA = 0.01
PLAN = Plan(8, 24)


def blocks(rng: np.random.Generator, change: float, noise: float) -> tuple[list[float], list[float]]:
    """Return the differences and replicates of PLAN's blocks, each process with independent noise."""
    head, base = rng.normal(math.log1p(change), noise, (PLAN.most, 2)), rng.normal(0, noise, (PLAN.most, 2))
    replicates = np.stack([base[:, 1] - base[:, 0], head[:, 1] - head[:, 0]], axis=1)
    return list(head.mean(axis=1) - base.mean(axis=1)), list(replicates.ravel())


def answer(rng: np.random.Generator, bad: float, change: float, noise: float) -> Answer:
    """Return what is said of a revision that takes `change` longer, looking as a measurement does."""
    question = LikeGoodOrBad({"trial": tuple(blocks(rng, bad, noise)[0])})
    differences, replicates = blocks(rng, change, noise)
    found: dict[str, Decision] = {}
    for seen, levels in PLAN.levels(ALPHA).items():
        data = {"trial": tuple(differences[:seen])}, {"trial": tuple(replicates[: 2 * seen])}
        found = question.decide(*data, levels, found)
    return found["trial"].answer


@pytest.mark.parametrize(
    ("change", "right", "wrong"), [(0.0, "pass", "regression"), (0.05, "regression", "pass")]
)
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.03, 0.05])
def test_five_percent_is_told_from_none_at_noise_that_proves_no_equality(
    change: float, right: str, wrong: str, noise: float
) -> None:
    """At 5 % noise a process, 24 blocks leave an interval of about 5 %: no margin of 2 % is met by that."""
    rng = np.random.default_rng(3)
    said = [answer(rng, 0.05, change, noise) for _ in range(100)]
    assert said.count(wrong) <= 4, "1 % of 100; more than 4 happens once in 300"  # type: ignore[arg-type]
    assert said.count(right) >= (95 if noise < 0.05 else 75)  # type: ignore[arg-type]


def test_what_lies_between_belongs_to_the_nearer_one() -> None:
    """A commit that changed nothing of the slowdown sought may well have changed something else."""
    rng = np.random.default_rng(5)
    for change in (0.01, 0.02):
        assert {answer(rng, 0.05, change, 0.003) for _ in range(20)} == {"pass"}
    for change in (0.03, 0.04):
        assert {answer(rng, 0.05, change, 0.003) for _ in range(20)} == {"regression"}


def likened(revision: float) -> Decision:
    """Return what is said of a revision whose blocks all differ alike, where BAD's all differ by 0.5."""
    data = {"trial": (revision,) * 8}, {"trial": (0.0,) * 16}
    return LikeGoodOrBad({"trial": (0.5,) * 8}).decide(*data, Levels.single(ALPHA), {})["trial"]


@pytest.mark.parametrize(("revision", "said"), [(0.24, "pass"), (0.25, "inconclusive"), (0.26, "regression")])
def test_what_lies_exactly_between_is_neither(revision: float, said: str) -> None:
    found = likened(revision)
    assert (found.answer, found.margin) == (said, 0.25)
    assert (found.paired, found.faster) == (True, False)
    assert (found.reason == "") == (said != "inconclusive")


def test_without_a_difference_between_the_ends_nothing_is_said() -> None:
    rng = np.random.default_rng(7)
    assert [answer(rng, 0.0, 0.0, 0.02) for _ in range(40)].count("inconclusive") >= 38


@pytest.mark.parametrize(("factor", "said"), [(1.0, "pass"), (1.2, "regression")])
def test_a_measurement_asks_of_the_slower_configuration_alone(factor: float, said: str) -> None:
    bad = measured(Machine(1.2))
    assert bad.paired is not None
    (slower,) = (row for row in bad.rows if row.answer == "regression")
    name = slower.base.trial_id
    question = LikeGoodOrBad({name: bad.paired.blocks[name]})
    found = measured(Machine(factor), question=question.decide)
    answers = {row.base.trial_id: row.step_time.answer for row in found.rows if row.step_time is not None}
    assert answers == {name: said}
    assert found.paired is not None
    assert {len(taken) for taken in found.paired.blocks.values()} == {8}, "no other configuration holds it up"


@pytest.mark.parametrize(("share", "said"), [(1, "regression"), (0.5, "inconclusive")])
def test_an_alarm_at_exactly_its_level_is_one(share: float, said: str) -> None:
    rng = np.random.default_rng(3)
    bad, (differences, replicates) = blocks(rng, 0.05, 0.003)[0], blocks(rng, 0.05, 0.003)
    p = claim_p(Paired(tuple(differences), tuple(replicates)), 0.0, Levels.single(ALPHA))
    question = LikeGoodOrBad({"trial": tuple(bad)})
    data = {"trial": tuple(differences)}, {"trial": tuple(replicates)}
    found = question.decide(*data, replace(Levels.single(ALPHA), alarm=share * p), {})
    assert found["trial"].answer == said


def test_a_claim_at_exactly_its_level_is_one() -> None:
    rng = np.random.default_rng(3)
    bad, (differences, replicates) = blocks(rng, 0.05, 0.003)[0], blocks(rng, 0.0, 0.003)
    levels = Levels.single(ALPHA)
    p = claim_p(Unpaired(tuple(differences), tuple(bad), RunNoise(0.0)), 0.0, levels)
    question, data = (
        LikeGoodOrBad({"trial": tuple(bad)}),
        ({"trial": tuple(differences)}, {"trial": tuple(replicates)}),
    )
    for passing, said in ((p, "pass"), (p / 2, "inconclusive")):
        found = question.decide(*data, replace(levels, passing=passing), {})
        assert found["trial"].answer == said
