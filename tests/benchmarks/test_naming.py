"""How long sweeps take to name the fastest: sweeps that are drawn from measured rounds."""

import random
from typing import Any

import pytest

from tools.benchmarks import naming


def finding(order: str, noise: float) -> dict[str, Any]:
    """Return 12 rounds of six configurations; noise: of each in a round."""
    chance = random.Random(order)
    rows = [[chance.gauss(0, noise) for _ in range(12)] for _ in range(6)]
    return {"order": order, "loaded": True, "seconds": [90.0], "costs": rows, "fastest": 5}


def test_the_fastest_is_named_the_sooner_the_less_noise_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "DRAWS", 20)
    quiet, noisy = finding("turns", 0.01), finding("rounds", 0.03)
    assert naming.summary(quiet)["named"] == 1.0
    assert naming.summary(quiet)["rounds"] < naming.summary(noisy)["rounds"] < naming.MOST
    assert "| a busy loop on each core | turns | 12 | 30 |" in naming.table([quiet, noisy])


def test_equals_are_not_named_and_no_sweep_is_endless() -> None:
    named, took_part = naming.drawn(naming.noise_of(finding("equals", 0.02)), random.Random(0))
    assert (named, len(took_part)) == (None, naming.MOST)
