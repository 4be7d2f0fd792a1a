"""The verdict on weights that scripts save, against a base and its yardstick."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zbench.verify.weights import Base, judge_weights, load_base, save_base


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"a.weight": torch.randn(6, 5, generator=generator), "b": torch.randn(7, generator=generator)}


def moved(by: float) -> dict[str, Tensor]:
    return {name: value + by * torch.ones_like(value) for name, value in weights().items()}


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (weights(), "identical"),
        (moved(2e-6), "equivalent"),
        (moved(1e-4), "drifted"),
        (moved(1e-2), "wrong"),
        ({**weights(), "b": torch.full((7,), float("nan"))}, "wrong"),
        ({"b": weights()["b"]}, "unchecked"),
        ({**weights(), "b": torch.zeros(8)}, "unchecked"),
    ],
)
def test_the_distance_of_two_base_runs_is_the_yardstick(
    mine: dict[str, Tensor], verdict: str, tmp_path: Path
) -> None:
    save_base(Base(weights(), moved(1e-6)), tmp_path / "base.safetensors")
    result = judge_weights(mine, load_base(tmp_path / "base.safetensors"))
    assert result.correctness.verdict == verdict
    if verdict == "identical":
        assert (result.correctness.error_ratio, result.correctness.max_abs_diff) == (1.0, 0.0)


def test_weights_that_are_missing_or_of_another_shape_are_not_judged() -> None:
    base = Base(weights(), None)
    name = min(base.weights)
    for others, words in (({}, f"lacks {name}"), ({name: torch.zeros(1)}, f"has another shape of {name}")):
        judged = judge_weights({n: v for n, v in weights().items() if n != name} | others, base)
        assert judged.correctness.verdict == "unchecked"
        assert words in judged.warnings[0]


def test_without_a_yardstick_only_equal_bits_are_judged() -> None:
    base = Base(weights(), None)
    same = judge_weights(weights(), base).correctness
    assert (same.verdict, same.error_ratio, same.max_ulp_diff) == ("identical", None, 0)
    other = judge_weights(moved(1e-6), base)
    assert other.correctness.verdict == "unchecked"
    assert "let the command train with an optimizer of torch.optim" in other.warnings[0]


@pytest.mark.parametrize(("rough", "verdict"), [(1e-4, "wrong"), (3e-3, "equivalent")])
def test_a_training_that_jumps_is_compared_with_the_rougher_run(rough: float, verdict: str) -> None:
    """Sixty-four times the error moves the weights 100 times as far, or 3,000 times."""
    base = Base(weights(), moved(1e-6), moved(rough), way=0.1)
    assert judge_weights(moved(4e-3), base).correctness.verdict == verdict


@pytest.mark.parametrize(
    ("base", "why"),
    [
        (
            Base(weights(), moved(0.03), None, way=0.1, is_repeatable=False),
            "two runs of the base configuration differ by 30% of the way that its weights travelled: set a"
            " seed",
        ),
        (
            Base(weights(), moved(1e-6), moved(0.03), way=0.1),
            "rounding moves the base configuration's result by 30% of the way that its weights travelled:"
            " train fewer steps",
        ),
    ],
    ids=["without a seed", "chaotic"],
)
def test_nothing_is_decided_where_rounding_is_a_quarter_of_the_way(
    base: Base, why: str, tmp_path: Path
) -> None:
    save_base(base, tmp_path / "base.safetensors")
    judged = judge_weights(moved(2.0), load_base(tmp_path / "base.safetensors"))
    assert judged.correctness.verdict == "unchecked"
    assert why in judged.warnings[0]
    calm = replace(base, way=1.0)
    assert judge_weights(moved(2.0), calm).correctness.verdict in ("drifted", "wrong")
