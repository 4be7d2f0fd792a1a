"""What findings say: which fault it is, how large, of which parameters, and in which step."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from zbench.verify.diagnosis import judge_update, where_of
from zbench.verify.replay import Adam, Residual, State, replay
from zbench.verify.steps import judge_steps
from zbench.verify.trajectory import Reference, Trajectory

ADAM = Adam(1e-3, 0.5, 0.999, 1e-8, 0.2, bias_correction=True, amsgrad=False, decoupled=True)
NAMES = ("a.weight", "a.bias", "b.weight")


def after(old: State, gradient: torch.Tensor, count: int, adam: Adam, way: str) -> State:
    """Return Adam's state after an update, exactly or in a way that is wrong."""
    mean = adam.beta1 * old["exp_avg"] + (1 - adam.beta1) * gradient
    square = adam.beta2 * old["exp_avg_sq"] + (1 - adam.beta2) * gradient**2
    first, second = adam.corrections(count)
    root = (square / second + adam.eps).sqrt() if way == "eps" else (square / second).sqrt() + adam.eps
    decay, update = 1 - adam.lr * adam.weight_decay, adam.lr * mean / first / root
    end = (old["param"] - update) * decay if way == "decay last" else old["param"] * decay - update
    return {"param": end, "exp_avg": mean, "exp_avg_sq": square}


def judged(wrong: Any, of: Any = NAMES, size: float = 1e-2, asked: Adam = ADAM, way: str = "") -> Any:
    """Return the faults of three updates, of which those `of` are wrong."""
    torch.manual_seed(1)
    moments = dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.zeros(2000).double())
    old = {f"{n}@": moments | {"param": torch.randn(2000).double()} for n in NAMES}
    adams, other = dict.fromkeys(NAMES, asked), (replace(asked, **wrong), way)
    residuals = list[Residual]()
    for count in (1, 2, 3):
        gradients = {f"{n}@": size * torch.randn(2000).double() for n in NAMES}
        how = {key: other if key[:-1] in of else (asked, "") for key in old}
        new = {key: after(one, gradients[key], count, *how[key]) for key, one in old.items()}
        residuals += replay(old, new, adams, dict.fromkeys(NAMES, count), rank=0, step=count)
        old = new
    return [(one.size, one.text) for one in judge_update(residuals, adams)[0]]


@pytest.mark.parametrize(
    ("wrong", "more", "size", "text"),
    [
        ({"lr": 1.00049e-3}, {}, 4.9e-4, "updates 0.049 % too long (all parameters)"),
        ({"lr": 2e-3, "weight_decay": 0.1}, {"of": ["b.weight"]}, 1.0, "updates 100.0 % too long (b.weight)"),
        ({"weight_decay": 0.0}, {}, 1.0, "no weight decay on all parameters"),
        ({"weight_decay": 0.21}, {}, 0.05, "weight decay 5.0 % too strong (all parameters)"),
        ({}, {"way": "decay last"}, 2e-4, "weight decay after the update (all parameters)"),
        ({"eps": 2e-8}, {"size": 1e-4}, 3.8e-3, "eps 2.0 x (all parameters)"),
        ({"eps": 0.0}, {"size": 1e-6}, 0.215, "eps 0 x (all parameters)"),
        ({}, {"way": "eps", "size": 1e-3}, 0.353, "eps inside the root (all parameters)"),
        ({"bias_correction": False}, {}, 15.8, "no bias correction (all parameters)"),
        ({"beta2": 0.99}, {}, 9.0, "beta2 0.99 instead of 0.999 (all parameters)"),
    ],
)  # fmt: skip
def test_each_fault_of_adam_is_named_with_its_size(wrong: Any, more: Any, size: float, text: str) -> None:
    ((found, words),) = judged(wrong, **more)
    assert (found, words) == (pytest.approx(size, rel=0.05), text)


def test_a_fault_is_located_by_what_its_parameters_share() -> None:
    names = dict(zip("wbW", NAMES, strict=True))
    adams = {name: replace(ADAM, group="b.*" if name == "b.weight" else None) for name in NAMES}
    for faulty, sound, where in (
        ("b0", "", "all parameters"), ("b0", "W0", "a.bias"), ("b1", "b0", "rank 1's part"),
        ("b2 W1", "b0 W0", "rank 1, 2's part"), ("b1", "b0 w1", "a.bias of rank 1's part"),
        ("W0", "w0", "b.*"), ("w0 W0", "b0", "*.weight"), ("w0 b0", "W0", "a.bias and 1 more"),
    ):  # fmt: skip
        bad, good = ({(names[one[0]], int(one[1])) for one in some.split()} for some in (faulty, sound))
        assert where_of(bad, good, adams) == where


def by(factor: float, at: int | slice = slice(None), first: int = 3) -> torch.Tensor:
    """Return [8, 3, 1]: a factor on one of three parameters, or on all, from one of 8 steps on."""
    (result := torch.ones(8, 3, 1).double())[first - 1 :, at] = factor
    return result


def run(updates: Any = 1.0, gradients: Any = 1.0, noise: Any = 1e-6, loss: Any = 1.0) -> Trajectory:
    """Return a run whose updates and gradients are the true ones by these factors, and some noise."""
    moves, slopes, *others = torch.randn(4, 8, 3, 64, generator=torch.Generator().manual_seed(1)).double()
    sketches = torch.zeros(9, 3, 2, 64).double()
    sketches[1:, :, 0] = (moves * updates + noise * others[0]).cumsum(0)
    for step, slope in enumerate(slopes * gradients + noise * others[1]):  # Adam adds a decay to them
        sketches[step + 1, :, 1] = (sketches[step, :, 1] + slope + 0.2 * sketches[step, :, 0]) / 2
    losses = loss * torch.ones(8, 3, 1).double()
    return Trajectory(tuple("abc"), losses, losses[:, 0, 0], torch.zeros(8, 3), {}, sketches=sketches)


def said(trial: Trajectory, plain: Trajectory = run(noise=0.0), dtype: str = "float32") -> Any:
    """Return what is said of a run beside a reference, which is the true run where none is given."""
    true, active = run(noise=0.0), torch.ones(8, 3, dtype=torch.bool)
    adams = dict.fromkeys("abc", replace(ADAM, decoupled=False))
    reference = Reference(plain, torch.ones(3), active, true_sketches=true.sketches, true_losses=true.losses)
    return [(one.size, one.text) for one in judge_steps(trial, reference, adams, dtype)]


@pytest.mark.parametrize(
    ("trial", "size", "text"),
    [
        (run(by(0.0)), 1.0, "the update of step 3 is lost"),
        (run(by(2.0, 1)), 1.0, "the update of step 3 is done twice (b)"),
        (run(by(0.5, 1, 4)), 0.5, "updates 50.0 % too short (b) in step 4"),
        (run(1.0, by(1.2, 2, 1)), 0.2, "gradients 1.2 x (c) in step 1"),
        (run(by(1.01), by(0.95)), 0.05, "gradients 5.0 % too small (all parameters) in step 3"),
        (run(1.0003, noise=1e-3), 3e-4, "updates 0.03 % too long (all parameters) from step 1 on"),
        (run(loss=by(1.3, first=5)), 0.05, "losses 30.0 % off from step 5 on"),
    ],
)  # fmt: skip
def test_the_first_step_that_differs_is_named_with_its_fault(trial: Any, size: float, text: str) -> None:
    ((found, words),) = said(trial)
    assert (found, words) == (pytest.approx(size, rel=0.1), text)


@pytest.mark.parametrize(
    ("dtype", "term", "own", "limit"),
    [
        ("float32", "updates", 0.0, 1.3e-4), ("float32", "gradients", 0.0, 2.3e-4),
        ("bfloat16", "updates", 0.0, 1.03e-3), ("bfloat16", "gradients", 0.0, 2**-8 + 3e-5),
        ("float16", "gradients", 0.0, 2**-11 + 3e-5), ("float32", "updates", 1e-3, 1.3e-4 + 5e-3),
        ("float32", "loss", 0.0, 1.002e-4), ("float32", "loss", 1e-3, 0.0161),
    ],
)  # fmt: skip
def test_a_step_may_be_off_by_its_limit(dtype: str, term: str, own: float, limit: float) -> None:
    plain = {key: by(1 + own, first=1) for key in ("updates", "gradients", "loss")}
    for share, count in ((0.97, 0), (1.03, 1), (-0.97, 0), (-1.03, 1)):
        trial = run(**plain | {term: by(1 + own + share * limit, first=1)})
        assert len(said(trial, run(**plain, noise=0.0), dtype)) == count


def test_a_run_that_is_farther_away_may_be_off_as_many_times_more() -> None:
    """Its first two updates are five times as far off as the reference's, which is within the limit."""
    own = by(1.001, first=1)
    for off, count in ((0.025, 0), (0.0255, 1)):
        trial = run(torch.cat([own[:2] + 0.005, own[2:] + off]), own)
        assert len(said(trial, run(own, own, noise=0.0))) == count
