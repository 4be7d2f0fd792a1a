"""The replay of an update: what torch's AdamW leaves is rounding, whatever the sizes of its gradients."""

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


def torch_replayed(lr: float, decay: float, *, fused: bool) -> tuple[list[Remainder], dict[str, Adam]]:
    """Return what remains of four steps of torch's AdamW with `decay` where 0.01 was asked for: ten weights
    of a norm, which begin at 1.
    """
    weights = {f"norm.{at}.weight": torch.nn.Parameter(torch.ones(1024)) for at in range(10)}
    optimizer = torch.optim.AdamW(weights.values(), lr=lr, weight_decay=decay, fused=fused)
    adam = Adam(lr, 0.9, 0.999, 1e-8, 1e-2, bias_correction=True, amsgrad=False, decoupled=True)
    adams, generator = dict.fromkeys(weights, adam), torch.Generator().manual_seed(1)

    def state(weight: torch.nn.Parameter) -> State:
        kept = optimizer.state.get(weight, {})
        return {kind: kept[kind].clone() for kind in ("exp_avg", "exp_avg_sq") if kept} | {
            "param": weight.detach().clone()
        }

    remainders, before = list[Remainder](), {f"{name}@": state(w) for name, w in weights.items()}
    for step in range(4):
        for weight in weights.values():
            weight.grad = 1e-2 * torch.randn(1024, generator=generator)
        optimizer.step()
        after = {f"{name}@": state(w) for name, w in weights.items()}
        remainders += replay(before, after, adams, dict.fromkeys(adams, step + 1), rank=0, step=step)
        before = after
    return remainders, adams


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lr", [1e-5, 1e-4, 3e-4, 1e-3])
def test_decay_that_rounds_alike_in_all_elements_is_no_fault(lr: float, fused: bool) -> None:
    """Where weights are near 1 and lr x weight_decay is a few units of rounding, all are rounded one way."""
    findings, coefficients = judge_update(*torch_replayed(lr, 1e-2, fused=fused))
    assert findings == []
    for coefficient in coefficients:
        assert abs(coefficient.value - 1) <= coefficient.error


@pytest.mark.parametrize(("decay", "says"), [(0.0, "no weight decay"), (1.1e-2, "too strong")])
def test_another_decay_is_seen_there(decay: float, says: str) -> None:
    (finding,), _ = judge_update(*torch_replayed(1e-4, decay, fused=True))
    assert says in finding.text
