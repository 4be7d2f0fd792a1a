"""What findings say: which fault it is, how large, of which parameters, and in which step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from zbench.verify.diagnosis import judge_update, percent, where_of
from zbench.verify.replay import DECAY, EPS, EPS_INSIDE, LENGTH, Adam, Residual, State, replay

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


def residual(rest: Any, name: str = NAMES[0], size: float = 1e5, **more: Any) -> Residual:
    """Return what remains of an update: shares of its directions, of a size, and of none of them (0).

    overlap: the cosine between the update and the decay. more: `moments`, the same of the second moments.
    """
    overlap = more.pop("overlap", 0.0)
    rows = np.eye(5)
    rows[DECAY] = [0, overlap, (1 - overlap**2) ** 0.5, 0, 0]
    rows *= size
    rows[0] = sum((share * rows[row] for row, share in rest.items()), np.zeros(5))
    share, other = more.pop("moments", (0.0, 0.0))
    moments = size**2 * np.array([[share**2 + other**2, share], [share, 1.0]])
    coherent = np.zeros((3, 5))
    for row, of_rounding in more.pop("coherent", {}).items():
        coherent[1, row] = of_rounding * size**2
    fields = {"rank": 0, "step": 1, "count": 1} | more
    return Residual(name, elements=100, gram=rows @ rows.T, moments=moments, coherent=coherent, **fields)


def named(*residuals: Residual, **asked: Any) -> Any:
    """Return the size and text of what is found in residuals."""
    adams = {name: replace(ADAM, **asked) for name in NAMES}
    return [(one.size, one.text) for one in judge_update(residuals, adams)[0]]


@pytest.mark.parametrize(
    ("rest", "more", "size", "text"),
    [
        ({DECAY: -0.2 * 0.86}, {}, 1.0, "no weight decay on all parameters"),
        ({DECAY: -0.2 * 0.84}, {}, 0.84, "weight decay 84.0 % too weak (all parameters)"),
        ({DECAY: -0.2 * 1.16}, {}, 1.16, "weight decay 116.0 % too weak (all parameters)"),
        ({LENGTH: 14.81 * 0.86}, {}, 12.74, "no bias correction (all parameters)"),
        ({LENGTH: 14.81 * 0.84}, {}, 12.44, "updates 1244.0 % too long (all parameters)"),
        ({LENGTH: -2.3e-4}, {}, 2e-4, "weight decay after the update (all parameters)"),
        ({LENGTH: -1.68e-4}, {}, 1.68e-4, "updates 0.017 % too short (all parameters)"),
        ({LENGTH: -2.32e-4}, {}, 2.32e-4, "updates 0.023 % too short (all parameters)"),
        ({0: 0.5}, {"worst": 3.01}, 0.5, "updates other than Adam's (all parameters)"),
        ({0: 0.5}, {"worst": 3.01, "size": 0.5}, 0.5, "updates other than Adam's (all parameters)"),
        ({0: 0.5, EPS: 0.49}, {"worst": 3.01}, 0.7, "updates other than Adam's (all parameters)"),
        ({0: 0.5, EPS: 0.51}, {"worst": 3.01}, 0.714, "eps 1.5 x (all parameters)"),
        ({EPS: -1.5}, {"worst": 3.01}, 1.5, "eps 0 x (all parameters)"),
        ({EPS_INSIDE: 1.0}, {"worst": 3.01}, 1.0, "eps inside the root (all parameters)"),
        ({EPS_INSIDE: 0.2}, {"worst": 3.01}, 0.2, "updates other than Adam's (all parameters)"),
        ({}, {"moments": (-1.5, 0.0)}, 1.5, "second moments that are not the gradients' (all parameters)"),
        ({}, {"moments": (2.0, 0.0)}, 2.0, "beta2 0.997 instead of 0.999 (all parameters)"),
        ({}, {"moments": (-0.5, 0.0)}, 0.5, "beta2 0.9995 instead of 0.999 (all parameters)"),
        ({}, {"moments": (0.5, 0.49)}, 0.5, "beta2 0.9985 instead of 0.999 (all parameters)"),
        ({}, {"moments": (0.5, 0.51)}, 0.714, "second moments that are not the gradients' (all parameters)"),
        ({LENGTH: 0.1}, {"moments": (1.0, 0.0)}, 1.0, "beta2 0.998 instead of 0.999 (all parameters)"),
    ],
)  # fmt: skip
def test_a_residual_is_named_by_what_explains_it(rest: Any, more: Any, size: float, text: str) -> None:
    assert named(residual(rest, **more)) == [(pytest.approx(size, rel=2e-3), text)]


A, B, W = NAMES


@pytest.mark.parametrize(
    ("share", "parts", "group", "where"),
    [
        (1.20e-4, [(name, rank, 1) for name in NAMES for rank in (0, 1)], None, "all parameters"),
        (1.20e-4, [(name, 1, 1) for name in NAMES], None, None),
        (1.25e-4, [(name, 1, 1) for name in NAMES], None, "rank 1's part"),
        (1.25e-4, [(name, 1, 1) for name in NAMES], "a.*", None),
        (1.30e-4, [(A, 1, 1), (W, 1, 1)], "a.*", "a.weight and 1 more of rank 1's part"),
        (1.30e-4, [(B, 0, 1), (B, 1, 1)], "a.*", "a.*"),
        (1.25e-4, [(B, 0, 1), (B, 1, 1)], "a.*", None),
        (1.30e-4, [(B, 0, step) for step in (1, 2, 3)], "a.*", None),
    ],
)
def test_parts_that_only_together_stray_are_named(share: float, parts: Any, group: Any, where: Any) -> None:
    """Those of one step, rank and group are judged together. One of them may be off by 1.4e-4."""
    adams = {name: replace(ADAM, group=group if name == B else None) for name in NAMES}
    residuals = [
        residual({LENGTH: share * ((name, rank, step) in parts)}, name, 2e5, alike=4.0,
                 rank=rank, step=step, count=step)
        for name in NAMES for rank in (0, 1) for step in (1, 2, 3)
    ]  # fmt: skip
    words = [f"updates {percent(share)} too long ({where})"] if where else []
    assert [one.text for one in judge_update(residuals, adams)[0]] == words


def test_of_several_faults_three_are_named() -> None:
    rests = ({LENGTH: 0.8}, {DECAY: 0.4}, {EPS: 0.2}, {0: 0.1})
    places = ((A, 0, 1e7), (B, 0, 1e5), (W, 0, 1e3), (W, 1, 10.0))
    residuals = [
        residual(rest, name, size, rank=rank, worst=4.0)
        for rest, (name, rank, size) in zip(rests, places, strict=True)
    ]
    length, decay = "updates 80.0 % too long (a.weight)", "weight decay 200.0 % too strong (a.bias)"
    assert [text for _, text in named(*residuals)] == [length, decay, "eps 1.2 x (b.weight)"]


def test_coefficients_are_those_of_all_parameters_together() -> None:
    def coefficients(*residuals: Residual, **asked: Any) -> Any:
        adams = {name: replace(ADAM, **asked) for name in NAMES}
        return [
            (one.term, pytest.approx(one.value), pytest.approx(one.error))
            for one in judge_update(residuals, adams)[1]
        ]

    one = residual({LENGTH: 0.2, DECAY: 0.1}, moments=(0.5, 0.0), alike=4.0)
    other = residual({}, NAMES[1], alike=4.0)
    assert coefficients(one, other) == [
        ("update length", 1.1, 8e-5 / 2**0.5),
        ("weight decay", 1 + 0.05 / 0.2, 8e-5 / 2**0.5 / 0.2),
        ("1 - beta2", 1.25, 4e-5 / 2**0.5),
    ]
    assert coefficients(one, weight_decay=0.0)[1] == ("weight decay", 11.0, 8e-3)
    assert coefficients() == []
    assert [term for term, *_ in coefficients(residual({}, overlap=1.0))] == ["1 - beta2"]
