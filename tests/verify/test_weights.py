"""The verdict on weights that scripts save, against a base and its yardstick."""

from collections.abc import Callable
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
    for other in (Base(weights(), {name: torch.ones(2)}), Base(weights(), precise={"b": torch.ones(7)})):
        assert judge_weights(moved(1.0), other).correctness.verdict == "unchecked"


def test_without_a_yardstick_only_equal_bits_are_judged() -> None:
    base = Base(weights(), None)
    same = judge_weights(weights(), base).correctness
    assert (same.verdict, same.error_ratio, same.max_ulp_diff) == ("identical", None, 0)
    other = judge_weights(moved(1e-6), base)
    assert other.correctness.verdict == "unchecked"
    assert "let the command train with an optimizer of torch.optim" in other.warnings[0]


def test_a_short_checkpoint_is_judged_by_its_bits_alone() -> None:
    short = {name: value.bfloat16() for name, value in weights().items()}
    base = Base(short, {name: value * 1.01 for name, value in short.items()})
    assert judge_weights(short, base).correctness.verdict == "identical"
    other = judge_weights({name: value * 1.1 for name, value in short.items()}, base)
    assert other.correctness.verdict == "unchecked"
    assert "the checkpoint is bfloat16: its rounding hides faults; save float32" in other.warnings[0]


def test_a_checkpoint_that_lacks_steps_is_not_judged() -> None:
    judged = judge_weights(weights(), Base(weights(), moved(1e-6), obstacle="save it after the last step"))
    assert judged.correctness.verdict == "unchecked"
    assert judged.warnings == ["not verified: save it after the last step"]


def test_under_autocast_a_small_difference_is_not_named() -> None:
    base = Base(weights(), moved(1e-3), roundoff=2**-9)
    judged = [judge_weights(moved(by * 1e-3), base) for by in (2, 15, 100)]
    assert [one.correctness.verdict for one in judged] == ["equivalent", "unchecked", "drifted"]
    assert "`verify.precise: {amp: false}`" in judged[1].warnings[0]


def test_an_error_far_below_the_way_of_its_tensor_is_healthy() -> None:
    base = Base(weights(), moved(1e-9), first={name: value - 1 for name, value in weights().items()})
    assert judge_weights(moved(3e-5), base).correctness.verdict == "equivalent"
    assert judge_weights(moved(3e-3), base).correctness.verdict == "wrong"


def _other(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=generator) for name, value in weights().items()}


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "equivalent"), (1.1, "drifted"), (2.0, "drifted")])
def test_a_precise_run_judges_a_short_checkpoint(factor: float, verdict: str, tmp_path: Path) -> None:
    """A way that is a tenth longer is a fault, although rounding is as large: rounding is not coherent."""
    first, way = _other(5), {name: 4 * value for name, value in _other(6).items()}

    def ended(factor: float, seed: int) -> dict[str, Tensor]:
        noise = _other(seed)
        return {name: (first[name] + factor * way[name] + 0.1 * noise[name]).bfloat16() for name in way}

    precise = {name: first[name] + way[name] for name in way}
    again = ended(1.0, 7)
    save_base(Base(again, again, first=first, precise=precise), tmp_path / "base.safetensors")
    base = load_base(tmp_path / "base.safetensors")
    assert judge_weights(ended(factor, 8), base).correctness.verdict == verdict
    lossy = replace(base, weights=ended(0.96, 7))
    assert judge_weights(precise, lossy).correctness.verdict == "equivalent", "it is nearer to the truth"


@pytest.mark.parametrize(
    ("change", "diagnosis"),
    [
        (lambda first, way: first | {"b": first["b"] + way["b"]}, "1 of 2 tensors did not move (a.weight)"),
        (lambda first, _: dict(first), "no weight moved"),
        (
            lambda first, way: {name: first[name] + 1.1 * way[name] for name in way},
            "moved 1.1 times as far as the base, the same way",
        ),
        (
            lambda first, way: {name: first[name] + 0.1 * _other(3)[name] for name in way},
            "elsewhere: other data, or another loss?",
        ),
        (lambda _, way: {name: _other(4)[name] + way[name] for name in way}, "starts from other weights"),
    ],
)
def test_a_difference_is_told_in_words(change: Callable[..., dict[str, Tensor]], diagnosis: str) -> None:
    first, way = weights(), {name: 0.1 * value for name, value in _other(2).items()}
    base = {name: first[name] + way[name] for name in first}
    close = {name: value + 1e-7 for name, value in base.items()}
    judged = judge_weights(change(first, way), Base(base, close, first=first)).correctness
    assert judged.verdict in ("drifted", "wrong")
    assert diagnosis in str(judged.diagnosis)


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
    near = judge_weights(moved(0.04), calm).correctness.verdict
    assert near == ("equivalent" if base.is_repeatable else "unchecked"), "3 % of the way is no rounding"
