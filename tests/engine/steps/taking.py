"""Steps that are taken as plain PyTorch takes them; each case runs on every rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.steps.agreeing import heard
from tests.engine.steps.training import as_undisturbed, batch, engine_of, model
from zbench.engine import Engine


def discarded(group: dist.ProcessGroup, spec: dict[str, Any], through: str) -> bool:
    """A step that has begun is discarded; whether the next one is that of an undisturbed run."""
    net = model()
    engine = engine_of(group, net, spec)
    zero = engine.zero_grad if through == "engine" else engine.optimizer.zero_grad
    zero()
    engine.backward(100 * net(batch(7)).square().mean())
    zero()
    engine.backward(net(batch(0)).square().mean())
    engine.step()
    zero()
    engine.backward(net(batch(1)).square().mean())
    engine.step()
    values = engine.full_parameters()
    engine.close()
    return as_undisturbed(values, group, spec, 2)


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
    found = []
    for step in range(2):
        engine.backward(net(batch(0)).square().mean())
        found.append(engine.step(grad_norm=step == 0).grad_norm)
    engine.close()
    plain(batch(0)).square().mean().backward()
    return [
        *found,
        float(nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])),
    ]


def hooked(group: dist.ProcessGroup, spec: dict[str, Any], backwards: int) -> tuple[str, bool]:
    """The user's hooks on parameters see and change gradients; whether as in plain PyTorch."""
    seen: list[list[Tensor]] = []
    results: list[list[Tensor]] = []
    said = ""
    for plain in (True, False):
        net, mine = model(), []
        trainer = None if plain else engine_of(group, net, spec)
        net[0].weight.register_hook(lambda grad: grad * 2)
        net[2].weight.register_post_accumulate_grad_hook(lambda p, mine=mine: mine.append(p.grad.clone()))

        def steps(net: nn.Module = net, trainer: Engine | None = trainer) -> None:
            for _ in range(backwards):
                loss = net(batch(0)).square().mean()
                loss.backward() if trainer is None else trainer.backward(loss)
            if trainer is not None:
                trainer.step()

        if trainer is None:
            steps()
            fused = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
            fused.step()
            results.append([p.detach() for p in net.parameters()])
        else:
            said = heard(steps)
            results.append(list(trainer.full_parameters().values()))
            trainer.close()
        seen.append(mine)
    if said != "nothing":
        return said, False
    alike = all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    near = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))
    return said, alike and near
