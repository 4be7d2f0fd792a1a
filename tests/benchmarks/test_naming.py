"""What sweeps that are drawn from measured heats say of one that is ahead, and of equals."""

import json
from typing import Any

import numpy as np
import pytest

from tools.benchmarks import naming


def heats(noise: float, count: int = 8) -> list[dict[str, Any]]:
    """Return heats of six equals; noise: of each turn."""
    chance = np.random.default_rng(1)
    return [
        {
            "loaded": bool(number % 2), "seconds": 60.0, "alone": [0.1] * 4,
            "steps": np.exp(chance.normal(0, noise, (6, 4, 1)) + np.zeros((6, 4, 3))).tolist(),
        }
        for number in range(2 * count)
    ]  # fmt: skip


def test_one_that_is_ahead_is_named_and_equals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "DRAWS", 20)
    monkeypatch.setattr(naming, "RACES", 3)
    text = naming.tables(json.loads(json.dumps(heats(0.01))))
    # load, repeats, lead; the shares of named, of another named, of said to be behind, of bounds that hold
    assert "| none | 2 | 10% | 100.0% | 0.0% | 100.0% | 100.0% |" in text
    assert "| none | 2 | 0% |  | 0.0% |  | 100.0% |" in text
    assert "| a busy loop on each core | 3 | 0 |" in text


def test_a_race_of_equals_in_noise_is_not_endless() -> None:
    name, repeats, trials = naming.race(np.random.default_rng(0), heats(0.5))
    assert (name, repeats) == (None, naming.MOST)
    assert trials <= 6 * repeats
