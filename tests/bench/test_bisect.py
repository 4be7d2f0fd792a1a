"""The benchmark that searches a list of revisions for the first slower one: what it asks, keeps and names."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.analysis.machine import Machine
from zbench.analysis.compare import Comparison
from zbench.analysis.measurement import OneByOne, PairedMeasurement, Plan, Question
from zbench.analysis.trials import Source
from zbench.bench import bisect
from zbench.bench.compare import SETTINGS
from zbench.spec.trial import TrialSpec


class Runner(SimpleNamespace):
    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the two servers by a seeded machine."""

    def made(*, targets: object = None) -> Runner:
        return Runner(slow=targets is not None)

    def comparison(
        trial: TrialSpec, good: Runner, other: Runner, plan: Plan, question: Question | None = None
    ) -> Comparison:
        assert not good.slow
        machine = Machine(factor=1.5 if other.slow else 1.0)
        first = lambda side: machine(side)[1:2]  # noqa: E731
        sides = Source("good"), Source("other")
        return PairedMeasurement(*sides, plan, SETTINGS, OneByOne(first), lambda _: None, question).run()

    monkeypatch.setattr(bisect, "warm_runner", made)
    monkeypatch.setattr(bisect, "comparison", comparison)
    monkeypatch.setenv(bisect.slowed.VARIABLE, "0")


@pytest.mark.parametrize("first", [1, 20, 32])
def test_the_first_slower_revision_is_named(
    runners: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: int
) -> None:
    out = tmp_path / "found"
    monkeypatch.setattr(sys, "argv", ["bisect", "--first", str(first), "--out", str(out)])
    bisect.main()
    document = json.loads(out.with_suffix(".json").read_text())
    assert document["named"] == [str(first)]
    assert len(document["probes"]) <= 6, "the bad one, and five probes"
    bisect.main()
    again = json.loads(out.with_suffix(".json").read_text())
    assert again["probes"] == document["probes"], "what was found is not measured again"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_slowdown_that_any_machine_shows_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--share 0.05` is the same search on a quiet machine."""
    out = tmp_path / "found"
    monkeypatch.setattr(sys, "argv", ["bisect", "--share", "1.0", "--blocks", "8", "12", "--out", str(out)])
    bisect.main()
    assert json.loads(out.with_suffix(".json").read_text())["named"] == ["20"]
