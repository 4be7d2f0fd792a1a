"""The replay of an update: what torch's AdamW leaves is rounding, whatever the sizes of its gradients."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from zbench.verify.diagnosis import judge_update
from zbench.verify.replay import Adam, Remainder, State, replay


def test_an_element_whose_gradient_begins_late_is_no_fault() -> None:
    """beta2 is rounded to float32 where it multiplies the old moments, and 1 - beta2 is not."""
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.ones(1 << 17))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    sizes = 1 + torch.rand(1 << 17, generator=generator)
    sizes[-1] = 0
    states = []
    for gradient in (sizes, 1e-3 * sizes + (sizes == 0)):
        parameter.grad = gradient
        optimizer.step()
        moments = {kind: optimizer.state[parameter][kind].clone() for kind in ("exp_avg", "exp_avg_sq")}
        states.append({"w@0": {"param": parameter.detach().clone(), **moments}})
    adam = Adam(
        lr=1e-3,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=1e-2,
        bias_correction=True,
        amsgrad=False,
        decoupled=True,
    )
    (remainder,) = replay(states[0], states[1], {"w": adam}, {"w": 2}, rank=0, step=1)
    assert remainder.worst_moment < 3
    assert remainder.worst < 3


@dataclass(frozen=True)
class Training:
    """Some steps of torch's AdamW. asked: the weight decay that was asked for. contracted: the factor of the
    parameters, their product with it and the update in one multiply-add, as compilers for GPUs make it.
    """

    weights: list[torch.nn.Parameter]
    lr: float
    decay: float
    asked: float
    fused: bool
    size: float = 1e-2
    steps: int = 4
    contracted: bool = False

    def replayed(self) -> tuple[list[Remainder], dict[str, Adam]]:
        """Return what remains of its steps, with gradients of `size`."""
        named = {f"{at}.weight": weight for at, weight in enumerate(self.weights)}
        optimizer = torch.optim.AdamW(self.weights, lr=self.lr, weight_decay=self.decay, fused=self.fused)
        adam = Adam(
            self.lr, 0.9, 0.999, 1e-8, self.asked, bias_correction=True, amsgrad=False, decoupled=True
        )
        adams, generator = dict.fromkeys(named, adam), torch.Generator().manual_seed(1)

        def state(weight: torch.nn.Parameter) -> State:
            kept = optimizer.state.get(weight, {})
            moments = {kind: kept[kind].clone() for kind in ("exp_avg", "exp_avg_sq") if kept}
            return moments | {"param": weight.detach().clone()}

        remainders, before = list[Remainder](), {f"{name}@": state(w) for name, w in named.items()}
        for step in range(self.steps):
            for weight in self.weights:
                weight.grad = self.size * torch.randn(weight.shape, generator=generator)
            old = [weight.detach().double() for weight in self.weights]
            optimizer.step()
            for weight, start in zip(self.weights, old, strict=True) if self.contracted else ():
                (first, second), kept = adam.corrections(step + 1), optimizer.state[weight]
                root = (kept["exp_avg_sq"].double() / second).sqrt() + adam.eps
                factor = float(np.float32(1 - self.lr * self.decay))
                weight.data = (start * factor - self.lr / first * kept["exp_avg"] / root).float()
            after = {f"{name}@": state(w) for name, w in named.items()}
            remainders += replay(before, after, adams, dict.fromkeys(adams, step + 1), rank=0, step=step)
            before = after
        return remainders, adams


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
    (finding,), _ = judge_update(*Training(norms(), 1e-4, decay, 1e-2, fused=True).replayed())
    assert says in finding.text


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300))
def test_torch_is_right_whatever_its_weights_and_rates(seed: int) -> None:
    """Weights that are all 1 or 0.5, near 1, or spread."""
    lot, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    start, spread = lot.choice([(1, 0), (0.5, 0), (0, 0.02), (0, 1), (1, 10 ** lot.uniform(-5, -1))])
    size, count, decay = lot.choice([64, 1024, 20000]), lot.choice([1, 3, 10]), lot.choice([1e-3, 0.05, 0.3])
    weights = [
        torch.nn.Parameter(start + spread * torch.randn(size, generator=generator)) for _ in range(count)
    ]
    rate, gradients, fused = 10 ** lot.uniform(-6, -2), 10 ** lot.uniform(-4, 0), lot.random() < 0.5
    contracted = lot.random() < 0.3
    training = Training(weights, rate, decay, decay, fused, gradients, steps=6, contracted=contracted)
    assert judge_update(*training.replayed())[0] == []
