"""The replay of an update: what torch's AdamW leaves is rounding, whatever the sizes of its gradients."""

import dataclasses
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.verify.honest import KERNELS, capturable_on_a_cpu, kernel
from zbench.verify.diagnosis import judge_update
from zbench.verify.replay import Adam, Residual, State, replay, updates_so_far


@dataclass(frozen=True)
class Training:
    """Some steps of torch's AdamW. asked: the weight decay that was asked for."""

    weights: list[torch.nn.Parameter]
    lr: float
    decay: float
    asked: float
    fused: bool
    size: float = 1e-2
    steps: int = 4

    def replayed(self) -> tuple[list[Residual], dict[str, Adam]]:
        """Return what remains of its steps, with gradients of `size`."""
        named = {f"{at}.weight": weight for at, weight in enumerate(self.weights)}
        optimizer = torch.optim.AdamW(self.weights, lr=self.lr, weight_decay=self.decay, fused=self.fused)
        adam = Adam(
            self.lr, 0.9, 0.999, 1e-8, self.asked, bias_correction=True, amsgrad=False, decoupled=True
        )
        adams = dict.fromkeys(named, adam)
        generator = torch.Generator().manual_seed(1)

        def state(weight: torch.nn.Parameter) -> State:
            entries = optimizer.state.get(weight, {})
            moments = {kind: entries[kind].clone() for kind in ("exp_avg", "exp_avg_sq") if entries}
            return moments | {"param": weight.detach().clone()}

        residuals = list[Residual]()
        before = {f"{name}@": state(w) for name, w in named.items()}
        for step in range(self.steps):
            for weight in self.weights:
                weight.grad = self.size * torch.randn(weight.shape, generator=generator)
            optimizer.step()
            after = {f"{name}@": state(w) for name, w in named.items()}
            residuals += replay(before, after, adams, dict.fromkeys(adams, step + 1), rank=0, step=step)
            before = after
        return residuals, adams


def norms() -> list[torch.nn.Parameter]:
    """Return ten weights of a norm, which begin at 1."""
    return [torch.nn.Parameter(torch.ones(1024)) for _ in range(10)]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lr", [1e-5, 1e-4, 3e-4, 1e-3])
def test_decay_that_rounds_alike_in_all_elements_is_no_fault(lr: float, fused: bool) -> None:
    """Where weights are near 1 and lr x weight_decay is a few units of rounding, all are rounded one way."""
    findings, coefficients = judge_update(*Training(norms(), lr, 1e-2, 1e-2, fused).replayed())
    assert findings == []
    for coefficient in coefficients:
        assert abs(coefficient.value - 1) <= coefficient.error


@pytest.mark.parametrize(("decay", "says"), [(0.0, "no weight decay"), (1.1e-2, "too strong")])
def test_another_decay_is_seen_there(decay: float, says: str) -> None:
    (finding,), _ = judge_update(*Training(norms(), 1e-3, decay, 1e-2, fused=True).replayed())
    assert says in finding.text


SPREADS = [(1.0, 0.0), (0.5, 0.0), (0.0, 0.0), (0.0, 0.02), (0.0, 1.0), (1.0, 1e-5), (0.3, 1e-2)]


def replayed(lot: random.Random) -> tuple[list[Residual], dict[str, Adam]]:
    """Return what remains of 2 or 6 updates by one of torch's kernels that are not compiled.

    Weights are all alike, near one another, or spread; gradients change or not, and have one sign or two.
    """
    generator = torch.Generator().manual_seed(lot.randrange(1 << 30))
    start, spread = lot.choice(SPREADS)
    size = lot.choice([1, 64, 1024, 20_000])
    constant = lot.random() < 0.3
    one_sign = lot.random() < 0.3
    adam = Adam(
        lr=10 ** lot.uniform(-6, -0.5),
        **lot.choice([{"beta1": 0.9, "beta2": 0.999}, {"beta1": 0.95, "beta2": 0.9999}]),
        eps=lot.choice([1e-8, 1e-6]),
        weight_decay=lot.choice([0.0, 1e-3, 0.05, 0.3]),
        bias_correction=True,
        amsgrad=False,
        decoupled=lot.random() < 0.7,
    )

    def drawn() -> Tensor:
        return torch.randn(size, generator=generator)

    weights = [start + spread * drawn() for _ in range(lot.choice([1, 3, 10]))]
    state = {kind: [torch.zeros(size) for _ in weights] for kind in ("exp_avg", "exp_avg_sq")}
    first = [drawn() for _ in weights]
    gradient_size = 10 ** lot.uniform(-4, 1)
    adams = {f"{at}.weight": adam for at in range(len(weights))}
    residuals = list[Residual]()

    def parts() -> dict[str, State]:
        values = {"param": weights, **state}
        return {f"{n}@0": {k: v[at].clone() for k, v in values.items()} for at, n in enumerate(adams)}

    step_kernel = kernel(lot.choice([*KERNELS][:-1]))
    settings = dataclasses.asdict(adam)
    for key in ("bias_correction", "group"):
        settings.pop(key)
    settings |= {"decoupled_weight_decay": settings.pop("decoupled"), "maximize": False}
    for step in range(lot.choice([2, 6])):
        gradients = [gradient_size * (one if constant else drawn()) for one in first]
        gradients = [one.abs() if one_sign else one for one in gradients]
        before = parts()
        count = [torch.tensor(float(step)) for _ in weights]
        with capturable_on_a_cpu():
            step_kernel(weights, gradients, *state.values(), [], count, **settings)
        residuals += replay(before, parts(), adams, dict.fromkeys(adams, step + 1), rank=0, step=step)
    return residuals, adams


@pytest.mark.parametrize(
    ("seed", "draws"), [(1, 40), pytest.param(random.randrange(1 << 30), 2000, marks=pytest.mark.soak)]
)
def test_torch_is_right_whatever_its_weights_rates_and_kernels(seed: int, draws: int) -> None:
    print(f"seed {seed}")
    lot = random.Random(seed)
    for draw in range(draws):
        assert judge_update(*replayed(lot))[0] == [], draw


ADAM = Adam(1e-6, 0.9, 0.999, 1e-8, 0.1, bias_correction=True, amsgrad=False, decoupled=True)


def states(size: int = 8, start: float = 1.0, gradient: float = 1e-2, held: float = 0.0) -> list[State]:
    """Return the state before and after an exact first update. held: the second moments before it."""
    mean, square = 0.1 * gradient, 0.999 * held + 1e-3 * gradient**2
    end = start - 1e-7 * start - 1e-6 * (mean / 0.1) / ((square / 1e-3) ** 0.5 + 1e-8)
    values = [
        {"param": start, "exp_avg": 0.0, "exp_avg_sq": held},
        {"param": end, "exp_avg": mean, "exp_avg_sq": square},
    ]
    return [{kind: torch.full((size,), x).double() for kind, x in one.items()} for one in values]


def of(old: State, new: State, count: int = 1, adam: Adam = ADAM) -> list[Residual]:
    """Return what remains of an update."""
    return list(replay({"w@0": old}, {"w@0": new}, {"w": adam}, {"w": count}, rank=3, step=2))


def test_moments_in_bfloat16_are_rounded_more() -> None:
    old, new = states(start=1e-6)
    short = new | {"exp_avg": new["exp_avg"].bfloat16()}
    assert of(old, new | {"exp_avg": short["exp_avg"].double()})[0].worst > 3
    assert of(old, short)[0].worst < 1
    assert of(old, short)[0].worst_moment < 1


@pytest.mark.parametrize("count", [1, 2])
def test_second_moments_that_nobody_shows_are_rebuilt_for_two_updates(count: int) -> None:
    adam = dataclasses.replace(ADAM, amsgrad=True)
    old, new = states()
    before, after = ({kind: one[kind] for kind in ("param", "exp_avg")} for one in (old, new))
    if count == 1:
        (residual,) = of(before, after, adam=adam)
        assert max(residual.worst, residual.worst_moment) < 1e-3
        assert not residual.moments.any()
    assert len(of(before, after, count=count)) == 1
    assert of(before, after, count=3) == []
    assert "exp_avg_sq" not in after


def test_a_parameter_without_a_gradient_in_a_step_has_no_update_there() -> None:
    """A layer that some steps leave out, as an unused expert, was called wrong: Adam had not updated it."""
    active = torch.tensor([[True, True], [True, True], [True, False], [True, True]])
    seldom = [updates_so_far(active, [1], step)[1] for step in (0, 2, 3)]
    assert (seldom, updates_so_far(active, [1], 3)[0]) == ([1, 0, 2], 3)


def test_a_part_that_did_not_move_or_is_not_known_is_left_out() -> None:
    old, new = states()
    empty = {kind: value[:0] for kind, value in new.items()}
    assert of(old, new, count=0) == of(old, {"param": new["param"]}) == of(old, empty) == []
    for before, adams in (({}, {"w": ADAM}), ({"w@0": old}, {"v": ADAM})):
        assert list(replay(before, {"w@0": new}, adams, {"w": 1}, rank=0, step=0)) == []
