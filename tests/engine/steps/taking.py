"""Steps that are taken as plain PyTorch takes them; each case runs on every rank."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.steps.agreeing import heard
from tests.engine.steps.training import as_undisturbed, batch, engine_of, model, take_step
from zbench.engine.gradients.storage import RankSums


def discarded(group: dist.ProcessGroup, spec: dict[str, Any], through: str) -> bool:
    """A step that has begun is discarded, and nothing gathered for it; whether the next one is that of an
    undisturbed run.
    """
    net = model()
    engine = engine_of(group, net, spec)
    zero = engine.zero_grad if through == "engine" else engine.optimizer.zero_grad
    with mock.patch.object(RankSums, "_gather", side_effect=AssertionError):
        engine.load_state_dict(engine.state_dict())
        engine.backward(100 * net(batch(7)).square().mean())
        zero()
    take_step(engine, 0)
    zero()
    take_step(engine, 1)
    return as_undisturbed(engine, group, spec, 2)


def retained(group: dist.ProcessGroup, spec: dict[str, Any]) -> bool:
    """Two backwards of one graph; whether they leave the bits of two backwards of two graphs."""
    results = []
    for retain in (True, False):
        net = model()
        engine = engine_of(group, net, spec | {"accumulation_mode": "unmanaged"})
        loss = net(batch(0)).square().mean()
        engine.backward(loss, retain_graph=retain)
        engine.backward(loss if retain else net(batch(0)).square().mean())
        engine.step()
        results.append(engine.full_parameters())
        engine.close()
    return all(torch.equal(results[0][n], v) for n, v in results[1].items())


def norms(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[float | None]:
    """Return the norm of a step that did not ask, one that did, and of torch's own."""
    net, plain = model(), model()
    engine = engine_of(group, net, spec)
    grad_norms = []
    for step in range(2):
        engine.backward(net(batch(0)).square().mean())
        grad_norms.append(engine.step(grad_norm=step == 0).grad_norm)
    engine.close()
    plain(batch(0)).square().mean().backward()
    return [
        *grad_norms,
        float(nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])),
    ]


def hooked(group: dist.ProcessGroup, spec: dict[str, Any], backwards: int) -> tuple[str, bool]:
    """The user's hooks on parameters see and change gradients; whether as in plain PyTorch."""
    net, plain = model(), model()
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    for each, gradients in zip((net, plain), seen, strict=True):
        each[0].weight.register_hook(lambda grad: grad * 2)
        each[2].weight.register_post_accumulate_grad_hook(
            lambda p, gradients=gradients: gradients.append(p.grad.clone())
        )
    engine = engine_of(group, net, spec)

    def step() -> None:
        for _ in range(backwards):
            engine.backward(net(batch(0)).square().mean())
        engine.step()

    message = heard(step)
    plain(batch(0)).square().mean().backward()
    torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01, fused=True).step()
    values = engine.full_parameters()
    engine.close()
    alike = len(seen[0]) == 1 and torch.equal(seen[0][0], seen[1][0])
    near = all(torch.allclose(values[n], p, atol=1e-6) for n, p in plain.named_parameters())
    return message, alike and near
