"""The benchmark that searches a list of revisions for the first slower one: what it asks, keeps and names."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zbench.bench import bisect


class Runner(SimpleNamespace):
    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_until_ready(self) -> None: ...


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the two servers: comparing with the slowed one is a regression."""

    def made(*_: object, targets: object = None, **__: object) -> Runner:
        return Runner(slow=targets is not None)

    def comparison(good: Runner, candidate: Runner, plan: object) -> dict[str, Any]:
        assert not good.slow
        answer = "regression" if candidate.slow else "pass"
        finding = "bad" if candidate.slow else "good"
        return {"finding": finding, "answer": answer, "change": 0.5 * candidate.slow, "blocks": 8}

    monkeypatch.setattr(bisect, "local_runner", made)
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
    assert len(document["probes"]) <= 5
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
