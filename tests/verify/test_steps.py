"""What is said of the first step that differs: which fault it is, where, and from which size on."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.verify.noise import growth
from zbench.verify.replay import Adam
from zbench.verify.steps import judge_steps
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
    start: Any = 0.0,
    sums: int = 64,
) -> Trajectory:
    """Return a run whose updates and gradients are the true ones by these factors, and some noise across.

    Each of them has the size 2, in `sums` of its 64 sums, and the weights begin with the sizes `start`.
    """
    drawn = torch.randn(4, 8, 3, 64, generator=torch.Generator().manual_seed(1)).double()
    true = torch.nn.functional.normalize(drawn[:2] * (torch.arange(64) < sums), dim=-1)
    across = drawn[2:] - (drawn[2:] * true).sum(-1, keepdim=True) * true
    true *= 2
    moves, slopes = true * torch.stack([torch.ones(8, 3, 1) * updates, torch.ones(8, 3, 1) * gradients])
    moves, slopes = torch.stack([moves, slopes]) + 2 * noise * torch.nn.functional.normalize(across, dim=-1)
    sketches = torch.zeros(9, 3, 2, 64).double()
    sketches[:, :, 0] = start / 8
    sketches[1:, :, 0] += moves.cumsum(0)
    for step, slope in enumerate(slopes):  # Adam adds a decay to them
        sketches[step + 1, :, 1] = (sketches[step, :, 1] + slope + 0.2 * sketches[step, :, 0]) / 2
    losses = (2 * loss * torch.ones(8, 3, 1).double())[:steps]
    names = ("a", "b", "c")
    return Trajectory(
        names, losses, losses[:, 0, 0], torch.zeros(steps, 3), {}, sketches=sketches[: steps + 1]
    )


def beside(plain: Trajectory, true: Trajectory, **more: Any) -> Reference:
    """Return the reference of a plain and a float64 run."""
    steps = len(plain.losses)
    whole = {"active": ACTIVE[:steps], "true_sketches": true.sketches, "true_losses": true.losses}
    return Reference(plain, torch.ones(3), **whole | more)


def said(trial: Trajectory, plain: Trajectory | None = None, dtype: str = "float32", **more: Any) -> Any:
    """Return what is said of a run beside a reference, which is the true run where none is given."""
    true = run(noise=0.0, steps=len(trial.losses), sums=more.pop("sums", 64))
    adams = dict.fromkeys("abc", ADAM)
    findings = judge_steps(trial, beside(plain or true, true, **more), adams, dtype)
    return [(one.size, one.text) for one in findings]


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
        (run(1.0003, noise=1e-3), 3e-4, "updates 0.03 % too long (all parameters) from step 1 on"),
        (run(by(1.0004, first=5), noise=1e-3), 4e-4,
         "updates 0.04 % too long (all parameters) from step 5 on"),
        (run(1.0004, noise=1e-3, steps=3), 4e-4, "updates 0.04 % too long (all parameters) from step 1 on"),
        (run(loss=by(1.3, first=5)), 0.05, "losses 30.0 % off from step 5 on"),
        (run(loss=by(1.03, first=5)), 0.03, "losses 3.0 % off from step 5 on"),
    ],
)  # fmt: skip
def test_the_first_step_that_differs_is_named_with_its_fault(trial: Any, size: float, text: str) -> None:
    ((found, words),) = said(trial)
    assert (found, words) == (pytest.approx(size, rel=0.02), text)


def test_two_steps_are_too_few_to_be_judged_together() -> None:
    assert said(run(1.0004, noise=1e-3, steps=2)) == []


def sizes(*of_each: float) -> Tensor:
    """Return [3, 1]: the sizes of the weights at first."""
    return torch.tensor(of_each).double()[:, None]


ALL = torch.ones(8, 3, 1).double()
APART = torch.tensor([1.0, -1.0, 0.0]).double()[None, :, None]  # two of three, and none in the mean
ERROR = 1e-3 / 63**0.5  # the standard error of a factor beside noise of 1e-3


def test_a_parameter_is_no_fault_because_another_is_uncertain() -> None:
    of_plain, of_trial = torch.tensor([[0.03], [0.02], [0.02]]), torch.tensor([[0.06], [0.02], [0.02]])
    trial = run(by(1.008, 0, 3, 3), noise=of_trial)  # a: two standard errors; b and c: the reference's bits
    assert not said(trial, run(noise=of_plain))


@pytest.mark.parametrize(
    ("term", "off", "own", "more", "limit"),
    [
        ("updates", ALL, 0.0, {}, 1.3e-4),
        ("updates", -ALL, 0.0, {}, 1.3e-4),
        ("updates", ALL, 0.0, {"dtype": "bfloat16"}, 1.03e-3),
        ("updates", ALL, 0.0, {"noise": 1e-3}, 1.3e-4 + 6 * ERROR / 3**0.5),
        ("updates", ALL, 0.0, {"noise": 1e-3, "sums": 16}, 1.3e-4 + 6e-3 / (15 * 3) ** 0.5),
        ("updates", ALL, 0.0, {"start": 2e4}, 1.3e-4 + 1e4 / 2**24),
        ("updates", ALL, 1e-3, {}, 5.13e-3),
        ("updates", ALL, -1e-3, {}, 5.13e-3),
        ("updates", ALL, 1e-3 * APART, {}, 1.3e-4 + 5e-3 / 3**0.5),
        ("updates", APART, 0.0, {}, 1.3e-4),
        ("updates", APART, 0.0, {"dtype": "bfloat16"}, 1.3e-4),
        ("updates", APART, 0.0, {"noise": 1e-3}, 1.3e-4 + 9 * ERROR),
        ("updates", APART, 0.0, {"start": 2e4}, 1.3e-4 + 1e4 / 2**24),
        ("updates", APART, 1e-3, {}, 1.3e-4),
        ("updates", APART, 1e-3 * APART, {}, 5.13e-3),
        ("updates", APART, 1e-3 * APART, {"plain_noise": 1e-3}, 1.3e-4 + 9 * ERROR + 5 * (1e-3 - 2 * ERROR)),
        ("updates", by(2.0, first=2) - 1, 1e-5 * by(10.0, first=2), {}, 9e-4),
        ("updates", ALL, 1e-3, {"plain_start": 1.0, "start": sizes(6, 6, 6)}, 1.3e-4 + 5 * 5e-3),
        ("updates", ALL, 1e-3, {"plain_start": 1.0, "start": sizes(1 + 75**0.5, 1, 1)}, 1.3e-4 + 5 * 5e-3),
        ("updates", ALL, 1e-3, {"plain_start": sizes(1, 1, 99), "start": sizes(6, 6, 99)}, 1.3e-4 + 5 * 5e-3),
        ("updates", ALL, 0.0, {"noise": 1e-2 * (by(2.0, 2, 1) - 1)}, 1.53e-4),  # two tell it well
        ("gradients", ALL, 0.0, {}, 2.3e-4),
        ("gradients", ALL, 0.0, {"dtype": "bfloat16"}, 2**-8 + 3e-5),
        ("gradients", ALL, 0.0, {"dtype": "float16"}, 2**-11 + 3e-5),
        ("gradients", ALL, 0.0, {"clipping": 1e-3}, 2.23e-3),
        ("gradients", APART, 0.0, {"clipping": 1e-3}, 2.3e-4),
        ("gradients", APART, 0.0, {"start": 2e4}, 2.3e-4),
        ("loss", ALL, 0.0, {}, 1e-4 + 4 * 2**-24),
        ("loss", ALL, 0.0, {"dtype": "bfloat16"}, 1e-4 + 4 * 2**-8),
        ("loss", ALL, 0.0, {"dtype": "float16"}, 1e-4 + 4 * 2**-11),
        ("loss", by(2.0, first=2) - 1, 1e-3 * by(0.0, first=2), {}, 0.0161),
    ],
)
def test_a_step_may_be_off_by_its_limit(term: str, off: Any, own: Any, more: Any, limit: float) -> None:
    """The limit is that of two steps. own: what the reference's own are off the float64 run's."""
    settings = dict(more)
    dtype, noise = settings.pop("dtype", "float32"), settings.pop("noise", 0.0)
    start, clipping = settings.pop("start", 0.0), settings.pop("clipping", 0.0)
    sums = settings.pop("sums", 64)
    first, plain_noise = settings.pop("plain_start", start), settings.pop("plain_noise", 0.0)
    plain = run(**{term: 1 + own * ALL}, noise=plain_noise, steps=2, start=first, sums=sums)
    low, high = 0.0, 4 * limit
    for _ in range(16):
        size = (low + high) / 2
        trial = run(**{term: 1 + own * ALL + size * off}, noise=noise, steps=2, start=start, sums=sums)
        named = said(trial, plain, dtype, clipping_error=torch.tensor(clipping), sums=sums)
        low, high = (low, size) if named else (size, high)
    assert high == pytest.approx(limit, rel=0.02)


@pytest.mark.parametrize("off", [ALL, APART])
def test_what_one_step_makes_of_rounding_cancels_over_several(off: Tensor) -> None:
    """The reference is off by 0.1 % in its first step. So 8 may be off by five times that over their root."""
    own = off * 1e-3 * by(0.0, first=2)
    for size, count in ((1.8e-3, 0), (2e-3, 1)):
        plain = run(1 + own, noise=0.0, start=100.0)
        found = said(run(1 + own + size * off, noise=0.0, start=100.0), plain)
        assert ["from step 1 on" in text for _, text in found] == [True] * count


@pytest.mark.parametrize(
    ("plain", "start", "last"),
    [
        (run(noise=0.0), 0.0, 8),
        (run(noise=0.14 * (by(2.0, 2, 5) - 1)), 0.0, 8),
        (run(noise=0.16 * (by(2.0, 2, 5) - 1)), 0.0, 4),
        (run(1.0, by(0.91, first=5), noise=0.0), 0.0, 8),
        (run(1.0, by(0.89, first=5), noise=0.0), 0.0, 4),
        (run(1.0, by(0.981, first=5), noise=0.0, start=1.0), 6.0, 8),
        (run(1.0, by(0.979, first=5), noise=0.0, start=1.0), 6.0, 4),
    ],
)
def test_steps_count_until_the_trajectory_decides_more_than_training(
    plain: Trajectory, start: float, last: int
) -> None:
    """A gradient of which the reference is 15 % off tells nothing, nor does a common limit above a half.

    From a start of 6 a run is five times as far from the reference as that is from the float64 run.
    """
    for step in (4, 5, 8):
        assert bool(said(run(loss=by(2.0, first=step), start=start), plain)) is (step <= last)


@pytest.mark.parametrize(("sums", "is_seen"), [(16, True), (15, False)])
def test_a_parameter_of_few_sums_tells_nothing(sums: int, is_seen: bool) -> None:
    assert bool(said(run(by(0.0), sums=sums), sums=sums)) is is_seen


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


def test_errors_of_moments_are_compared_with_those_after_the_first_step() -> None:
    true = run(noise=0.0, steps=3)
    shares = torch.tensor([[0.1, 0.2, 0.0], [0.2, 0.1, 0.4], [0.3, 0.2, 0.1]])
    plain = replace(true, sketches=true.sketches.clone())
    plain.sketches[1:, :, 1] *= 1 + shares[:, :, None]
    reference = beside(plain, true)
    assert growth(reference) == pytest.approx({"a": 3.0, "b": 2.0, "c": 2.0})
    assert growth(beside(true, true)) == dict.fromkeys("abc", 1.0)
    plain.sketches[1:, 0, 1] = true.sketches[1:, 0, 1]
    assert growth(reference)["a"] == pytest.approx(growth(reference)["b"])
    for sketches in (torch.zeros(0), true.sketches[:, :2]):
        assert growth(beside(replace(plain, sketches=sketches), true)) == dict.fromkeys("abc", 1.0)
