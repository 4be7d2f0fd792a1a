"""The slope of the first gradient: what the reference itself is off is no fault of an engine."""

import pytest
import torch

from zbench.verify.slope import judge_gradient, slopes


@pytest.mark.parametrize(("factor", "says"), [(1.0, []), (0.95, ["gradients 6.8 % too small (norm.weight)"])])
def test_an_exact_gradient_is_right_where_the_reference_rounds_alike(factor: float, says: list[str]) -> None:
    """In bfloat16 the reference's gradient of one norm is 2 % too large, those of the others are not."""
    generator = torch.Generator().manual_seed(1)
    true = {f"{at}.weight": torch.randn(64, generator=generator) for at in range(20)}
    true["norm.weight"] = torch.randn(64, generator=generator)

    def rounded() -> dict[str, torch.Tensor]:
        return {n: t * (1 + 5e-3 * torch.randn(64, generator=generator)) for n, t in true.items()}

    plain, trial = rounded(), rounded()
    plain["norm.weight"] *= 1.02
    trial["norm.weight"] *= factor
    findings, _ = judge_gradient(slopes(trial, plain, true), None, "bfloat16", {})
    assert [finding.text for finding in findings] == says
