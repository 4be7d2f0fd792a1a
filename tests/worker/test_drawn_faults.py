"""Faults that a lot chose: each of the update is found, and 95 of 100 of the gradient."""

import pytest

from tests.worker.conftest import RunTrial
from tests.worker.test_wrong_engines import correctness

GROUPS = {"*norm*": {"weight_decay": 0.0, "betas": [0.8, 0.95]}, "*.bias": {"lr": 2e-3, "weight_decay": 0.1}}
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
DRAWS = pytest.mark.parametrize("draws", [1, pytest.param(100, marks=pytest.mark.soak)])


def unnoticed(run_trial: RunTrial, kind: str, draws: int, dtype: str) -> list[str]:
    """Return the faults that no verdict told."""
    names = [f"tests.worker.drawn_faults:{kind}_{number}" for number in range(draws)]
    settings = {"dtype": dtype, "param_groups": GROUPS}
    fine = ("identical", "equivalent")
    return [name for name in names if correctness(run_trial, name, **settings).verdict in fine]


@DRAWS
@DTYPES
def test_every_drawn_fault_of_the_update_is_noticed(run_trial: RunTrial, dtype: str, draws: int) -> None:
    assert unnoticed(run_trial, "update", draws, dtype) == []


@DRAWS
@DTYPES
def test_drawn_faults_of_the_gradient_are_noticed(run_trial: RunTrial, dtype: str, draws: int) -> None:
    assert len(unnoticed(run_trial, "gradient", draws, dtype)) <= draws * 0.05
