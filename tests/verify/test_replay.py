"""The replay of an update: what torch's AdamW leaves is rounding, whatever the sizes of its gradients."""

import torch

from zbench.verify.replay import Adam, replay


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
