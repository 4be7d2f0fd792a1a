"""The slope of the first gradient: what the reference itself is off is no fault of an engine."""

import pytest
import torch

from zbench.verify.slope import judge_gradient, slopes


@pytest.mark.parametrize("off", [1.02, 0.9])
@pytest.mark.parametrize("factor", [1.0, 0.95, 1.05])
def test_an_exact_gradient_is_right_where_the_reference_rounds_alike(factor: float, off: float) -> None:
    """In bfloat16 the reference's gradient of one norm is off as a whole, those of the others are not. One
    that is off to the other side, or by as much as 5 %, is wrong.
    """
    generator = torch.Generator().manual_seed(1)
    true = {f"{at}.weight": torch.randn(64, generator=generator) for at in range(20)}
    true["norm.weight"] = torch.randn(64, generator=generator)

    def rounded() -> dict[str, torch.Tensor]:
        return {n: t * (1 + 5e-3 * torch.randn(64, generator=generator)) for n, t in true.items()}

    plain, trial = rounded(), rounded()
    plain["norm.weight"] *= off
    trial["norm.weight"] *= factor
    findings, _ = judge_gradient(slopes(trial, plain, true), None, "bfloat16", {})
    is_between = min(off, 1.0) <= factor <= max(off, 1.0)
    assert [finding.text.endswith("(norm.weight)") for finding in findings] == [True] * (not is_between)
