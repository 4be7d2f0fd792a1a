"""What is said of the first step that differs: which fault it is, where, and from which size on."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.verify.replay import Adam
from zbench.verify.steps import JudgedSteps, judge_steps
from zbench.verify.sums import CELLS
from zbench.verify.trajectory import Reference, Trajectory

ADAM = Adam(1e-3, 0.5, 0.999, 1e-8, 0.2, bias_correction=True, amsgrad=False, decoupled=False)
ACTIVE = torch.ones(8, 3, dtype=torch.bool)


def by(factor: float, at: int | slice = slice(None), first: int = 3, last: int = 8) -> Tensor:
    """Return [8, 3, 1]: a factor on one of three parameters, or on all, in some of 8 steps."""
    (result := torch.ones(8, 3, 1).double())[first - 1 : last, at] = factor
    return result


def run(
    updates: Any = 1.0,
    gradients: Any = 1.0,
    noise: Any = 1e-6,
    loss: Any = 1.0,
    *,
    steps: int = 8,
    start: Any = 100.0,
    sums: int = 128,
) -> Trajectory:
    """Return a run whose updates and gradients are the true ones by these factors, and some noise across.

    Each of them has the size 2, in `sums` of its 128 sums, and the weights begin with the sizes `start`.
    """
    drawn = torch.randn(4, 8, 3, CELLS, generator=torch.Generator().manual_seed(1)).double()
    true = torch.nn.functional.normalize(drawn[:2] * (torch.arange(CELLS) < sums), dim=-1)
    across = drawn[2:] - (drawn[2:] * true).sum(-1, keepdim=True) * true
    true *= 2
    every = torch.ones(8, 3, CELLS)
    moves, slopes = true * torch.stack([every * updates, every * gradients])
    moves, slopes = torch.stack([moves, slopes]) + 2 * noise * torch.nn.functional.normalize(across, dim=-1)
    sketches = torch.zeros(9, 3, 2, CELLS).double()
    sketches[:, :, 0] = start / CELLS**0.5
    sketches[1:, :, 0] += moves.cumsum(0)
    for step, slope in enumerate(slopes):  # Adam adds a decay to them
        sketches[step + 1, :, 1] = (sketches[step, :, 1] + slope + 0.2 * sketches[step, :, 0]) / 2
    losses = (2 * loss * torch.ones(8, 3, 1).double())[:steps]
    names = ("a", "b", "c")
    return Trajectory(names, losses, losses[:, 0, 0], torch.zeros(steps, 3), sketches=sketches[: steps + 1])


def beside(plain: Trajectory, true: Trajectory, **more: Any) -> Reference:
    """Return the reference of a plain and a float64 run."""
    steps = len(plain.losses)
    whole = {"true_sketches": true.sketches, "true_losses": true.losses}
    fields = {"active": ACTIVE[:steps], "shapes": {key: [1] for key in "abc"}, "parameters": {}}
    return Reference(plain, torch.ones(3), **fields | whole | more)


def judged(
    trial: Trajectory, plain: Trajectory | None = None, dtype: str = "float32", **more: Any
) -> JudgedSteps:
    """Judge a run beside a reference, which is the true run if none is given."""
    true = run(noise=0.0, steps=len(trial.losses), sums=more.pop("sums", CELLS))
    adams = dict.fromkeys("abc", ADAM)
    return judge_steps(trial, beside(plain or true, true, **more), adams, dtype)


def said(*runs: Any, **more: Any) -> Any:
    """Return what is said of a run."""
    return [(one.size, one.text) for one in judged(*runs, **more).findings]


@pytest.mark.parametrize(
    ("trial", "size", "text"),
    [
        (run(by(0.0)), 1.0, "the update of step 3 is lost"),
        (run(by(0.14)), 1.0, "the update of step 3 is lost"),
        (run(by(0.16)), 0.84, "updates 84.0 % too short (all parameters) in step 3"),
        (run(by(2.0, 1)), 1.0, "the update of step 3 is done twice (b)"),
        (run(by(1.9, 1)), 1.0, "the update of step 3 is done twice (b)"),
        (run(by(1.84, 1)), 0.84, "updates 84.0 % too long (b) in step 3"),
        (run(by(0.5, 1, 4)), 0.5, "updates 50.0 % too short (b) in step 4"),
        (run(by(0.5, slice(2), 4)), 0.5, "updates 50.0 % too short (a and 1 more) in step 4"),
        (run(1.0, by(1.2, 2, 1)), 0.2, "gradients 1.2 x (c) in step 1"),
        (run(1.0, by(3.0, first=2)), 2.0, "gradients 3.0 x, as if summed over 3 ranks in step 2"),
        (run(by(1.01), by(0.95)), 0.05, "gradients 5.0 % too small (all parameters) in step 3"),
        (run(by(1.01, 0), by(0.95, 1)), 0.05, "gradients 5.0 % too small (b) in step 3"),
        (run(loss=by(1.3, first=5)), 0.05, "losses 30.0 % off from step 5 on"),
        (run(loss=by(1.03, first=5)), 0.03, "losses 3.0 % off from step 5 on"),
    ],
)  # fmt: skip
def test_the_first_step_that_differs_is_named_with_its_fault(trial: Any, size: float, text: str) -> None:
    ((found, words),) = said(trial)
    assert (found, words) == (pytest.approx(size, rel=0.02), text)


@pytest.mark.parametrize(
    ("trial", "size", "text"),
    [
        (run(1.0003, noise=1e-3), 3e-4, "updates 0.03 % too long (all parameters) from step 1 on"),
        (run(by(1.0003, first=5), noise=1e-3), 3e-4,
         "updates 0.03 % too long (all parameters) from step 5 on"),
        (run(1.0003, noise=1e-3, steps=3), 3e-4, "updates 0.03 % too long (all parameters) from step 1 on"),
    ],
)  # fmt: skip
def test_several_steps_show_what_is_too_small_for_one(trial: Any, size: float, text: str) -> None:
    ((found, words),) = said(trial, run(noise=2e-4, steps=len(trial.losses)))
    assert (found, words) == (pytest.approx(size, rel=0.1), text)


def test_a_parameter_is_no_fault_because_another_is_uncertain() -> None:
    of_plain, of_trial = torch.tensor([[0.03], [0.02], [0.02]]), torch.tensor([[0.06], [0.02], [0.02]])
    trial = run(by(1.008, 0, 3, 3), noise=of_trial)  # a: two standard errors; b and c: the reference's bits
    assert not said(trial, run(noise=of_plain))


def test_a_relu_that_only_the_trial_crosses_is_no_factor_on_one_gradient() -> None:
    noise = torch.full((8, 3, 1), 1e-6).double()
    noise[4, 0] = 0.02  # other directions in one parameter; a part along the gradient in another
    assert not said(run(1.0, by(1.0035, 1, 5, 5), noise=noise))
    assert said(run(1.0, by(1.0035, 1, 5, 5)))


def part(factor: float, start: int, stop: int, stride: int = 1) -> Tensor:
    """Return [8, 3, 128]: a factor on some sums of the second parameter, from step 3 on."""
    result = torch.ones(8, 3, CELLS).double()
    result[2:, 1, start:stop:stride] = factor
    return result


@pytest.mark.parametrize(
    ("updates", "gradients", "subject"),
    [
        (1.0, part(0.0, 0, 16), "gradients"),
        (1.0, part(2.0, 32, 80), "gradients"),
        (1.0, part(-1.0, 0, 128, 16), "gradients"),
        (part(0.0, 16, 32), 1.0, "updates"),
    ],
    ids=["an eighth of the rows", "more rows", "a sixteenth of the columns", "an update"],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_fault_of_a_part_of_a_parameter_is_named(
    updates: Any, gradients: Any, subject: str, dtype: str
) -> None:
    noise = 0.02 if dtype == "bfloat16" else 1e-6
    ((_, words),) = said(run(updates, gradients, noise=noise), run(noise=noise / 2), dtype)
    assert words.startswith(subject)
    assert words.endswith("off (a part of b) in step 3")


def test_in_16_bits_more_noise_than_rounding_makes_is_a_fault_of_its_own_step() -> None:
    noise = torch.full((8, 3, 1), 0.02).double()
    noise[4, 1] = 0.3
    plain = run(noise=0.02)
    assert said(run(noise=0.04), plain, "bfloat16") == []
    ((_, words),) = said(run(noise=noise), plain, "bfloat16")
    assert words.endswith("off (a part of b) in step 5")


def test_steps_are_covered_until_rounding_may_decide_a_quarter_of_them() -> None:
    assert judged(run()).covered == 8
    wild = run(1.0, by(1.06, first=5))
    assert judged(wild, wild).covered == 4


def test_a_jump_at_a_kink_is_no_fault_and_ends_what_is_covered() -> None:
    noise = torch.full((8, 3, 1), 1e-6).double()
    noise[3:, :2] = 0.1  # the third parameter is above the kink
    trial = run(1.0, by(0.8, slice(2), first=5), noise=noise)
    found = judged(trial)
    assert (found.findings, found.covered, found.left) == ([], 3, 4)
    assert judged(run(1.0, by(0.8, slice(2), first=5))).findings


def test_a_step_without_a_gradient_or_that_was_skipped_tells_nothing() -> None:
    active = ACTIVE.clone()
    active[2, 1] = False
    assert said(run(by(0.0, 1, last=3)), active=active) == []
    assert len(said(run(by(0.0, 0, last=3)), active=active)) == 1
    skipping = replace(run(noise=0.0), skipped=(2,))
    assert said(replace(run(by(0.0, last=3)), skipped=(2,)), skipping) == []
    assert len(said(replace(run(by(0.0)), skipped=(2,)), skipping)) == 1
    assert said(run(by(0.0)), skipping) == []


def test_without_sketches_the_losses_of_all_steps_are_judged() -> None:
    none, true = torch.zeros(0), run(noise=0.0)
    for trial, plain in ((none, true.sketches), (none, none), (true.sketches[:, :2], true.sketches)):
        observed = replace(run(loss=by(1.3, first=8)), sketches=trial)
        found = said(observed, replace(true, sketches=plain))
        assert [text for _, text in found] == ["losses 30.0 % off from step 8 on"]
    assert said(replace(run(loss=2.0), losses=torch.ones(8, 2, 1)), true) == []


def test_without_first_moments_only_updates_are_judged() -> None:
    for updates, gradients, count in ((1.0, 2.0, 0), (0.5, 2.0, 1)):
        trial = run(updates, gradients)
        trial.sketches[:, :, 1] = 0
        assert len(said(trial)) == count
