"""How long sweeps take to name the fastest: sweeps that are drawn from measured rounds."""

import math
import random
from typing import Any

import numpy as np
import pytest

from tools.benchmarks import naming
from tools.benchmarks.naming import MOST, drawn, summary, table


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "DRAWS", 20)


def finding(order: str, noise: float, seconds: float) -> dict[str, Any]:
    """Return 18 rounds of six configurations, the last 5 % faster; noise: of a configuration in a round."""
    chance = random.Random(order)
    rows = [[chance.gauss(0, noise) - 0.05 * (row == 5) for _ in range(18)] for row in range(6)]
    return {"order": order, "loaded": True, "seconds": [seconds], "costs": rows, "fastest": 5}


def test_the_fastest_is_named_the_sooner_the_less_noise_there_is() -> None:
    quiet, noisy = summary(finding("turns", 0.01, 90.0)), summary(finding("rounds", 0.03, 60.0))
    assert quiet["named"] == 1.0
    assert quiet["rounds"] < noisy["rounds"] < MOST
    assert math.isclose(quiet["seconds_a_round"], 30.0)
    assert quiet["minutes"] <= quiet["rounds"] * 30 / 60, "those that fell behind take part no more"


def test_equals_are_not_named_and_no_sweep_is_endless() -> None:
    cells = np.array([[random.Random(f"{row}{k}").gauss(0, 0.02) for k in range(18)] for row in range(2)])
    cells -= cells.mean(axis=1, keepdims=True)
    named, took_part = drawn(cells, random.Random(0))
    assert (named, len(took_part)) == (None, MOST)


def test_orders_are_compared_by_the_time_that_they_take() -> None:
    text = table([finding("turns", 0.01, 90.0), finding("rounds", 0.03, 60.0)])
    assert "| a busy loop on each core | turns | 18 | 30 |" in text
    assert text.endswith("with other work.")
