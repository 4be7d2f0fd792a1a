"""The reference's optimizer is torch's own: same bits, groups by name, parameters without gradients left
alone."""

import pytest
import torch
from torch import Tensor

from zbench.engine.adam import NORM_CHUNK
from zbench.spec.engine import EngineSpec
from zbench.verify.plain_numerics import PlainAdam

SIZES = {
    "a.weight": (16, 32),
    "a.bias": (48,),
    "b.weight": (64, 16),
}  # multiples of 16: torch has no odd tail


def initial() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SIZES.items()}


def gradients(step: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SIZES.items()}


def spec(**keys: object) -> EngineSpec:
    return EngineSpec.model_validate(keys)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)])
def test_padding_changes_no_bit_of_torchs_fused_adam(
    name: str, kind: type[torch.optim.Adam], amsgrad: bool
) -> None:
    hyper = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6, "amsgrad": amsgrad}
    ours = PlainAdam(initial(), spec(optimizer={"name": name, **hyper}), torch.float32)
    theirs = initial()
    adamw = kind(theirs.values(), fused=True, **hyper)
    for step in range(5):
        ours.step(gradients(step), 0.5)
        for name, gradient in gradients(step).items():
            assert gradient is not None
            theirs[name].grad = gradient * 0.5
        adamw.step()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.values().items())


def test_padding_takes_less_than_a_chunk_of_each_parameter() -> None:
    for value in PlainAdam(initial(), spec(), torch.float32).values().values():
        padding = value.untyped_storage().nbytes() // value.element_size() - value.numel()
        assert 0 <= padding < NORM_CHUNK


def test_groups_take_the_first_pattern_that_matches() -> None:
    groups = {"*.bias": {"lr": 0.0}, "a.*": {"weight_decay": 0.0}}
    grouped = PlainAdam(initial(), spec(param_groups=groups), torch.float32)
    plain = PlainAdam(initial(), spec(), torch.float32)
    undecayed = PlainAdam(initial(), spec(optimizer={"weight_decay": 0.0}), torch.float32)
    for adam in (grouped, plain, undecayed):
        adam.step(gradients(0), 1.0)
    values = grouped.values()
    assert torch.equal(values["a.bias"], initial()["a.bias"])
    assert torch.equal(values["a.weight"], undecayed.values()["a.weight"])
    assert torch.equal(values["b.weight"], plain.values()["b.weight"])


def test_without_bias_correction_moments_are_used_as_they_are() -> None:
    adam = PlainAdam(
        initial(), spec(optimizer={"bias_correction": False, "weight_decay": 0.0}), torch.float64
    )
    adam.step(gradients(0), 1.0)
    for name, value in adam.values().items():
        gradient = gradients(0)[name]
        assert gradient is not None
        g = gradient.double()
        expected = initial()[name].double() - 1e-3 * (0.1 * g) / ((0.001 * g * g).sqrt() + 1e-8)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_a_parameter_without_gradient_keeps_its_value_and_its_step_count() -> None:
    skipping, plain = (PlainAdam(initial(), spec(), torch.float32) for _ in range(2))
    skipping.step(gradients(0) | {"a.bias": None}, 1.0)
    assert torch.equal(skipping.values()["a.bias"], initial()["a.bias"])
    skipping.step(gradients(1), 1.0)
    plain.step(gradients(1), 1.0)
    assert torch.equal(skipping.values()["a.bias"], plain.values()["a.bias"])


def test_short_moments_are_rounded_after_each_step_in_float32_only() -> None:
    short = PlainAdam(initial(), spec(optimizer={"moments_dtype": "bfloat16"}), torch.float32)
    exact = PlainAdam(initial(), spec(optimizer={"moments_dtype": "bfloat16"}), torch.float64)
    for adam in (short, exact):
        adam.step(gradients(0), 1.0)
    for name, moment in short.first_moments().items():
        assert torch.equal(moment, moment.bfloat16().float())
        assert not torch.equal(exact.first_moments()[name], exact.first_moments()[name].bfloat16().double())
