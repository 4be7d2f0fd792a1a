"""What a saved state may hold besides the parameters' values."""

import math

import pytest
import torch

from zbench.engine.checkpoint.state import check_others
from zbench.errors import UsageError

COUNT = torch.tensor(3)
RATE = torch.tensor(0.5)
VALUES = torch.zeros(2, 3)


def check(**saved: torch.Tensor) -> None:
    check_others(saved, {"count": COUNT, "rate": RATE}, {"values": VALUES})


def test_zeros_absent_keys_and_negative_values_of_parameters_fit() -> None:
    check()
    check(count=torch.tensor(0), rate=torch.tensor(0.0), values=-torch.ones(2, 3))


@pytest.mark.parametrize("rate", [-0.5, math.nan, math.inf])
def test_numbers_are_finite_and_not_negative(rate: float) -> None:
    with pytest.raises(UsageError, match="expected 'rate' to be finite and not negative"):
        check(rate=torch.tensor(rate))


@pytest.mark.parametrize("saved", [{"values": torch.zeros(3, 2)}, {"count": torch.tensor(3.0)}])
def test_another_shape_or_kind_of_number_is_refused(saved: dict[str, torch.Tensor]) -> None:
    with pytest.raises(UsageError, match="of shape"):
        check(**saved)
