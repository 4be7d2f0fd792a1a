"""What ranks do in the tests of what is saved beside the optimizer's state."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.engine.steps.agreeing import heard
from tests.engine.steps.training import batch, engine_of, model
from zbench.engine.checkpoint import load, save, save_weights


def draws() -> list[float]:
    """Return the next number of every generator."""
    return [float(torch.rand(())), random.random(), float(np.random.rand()), float(np.random.randn())]


def resumed(group: dist.ProcessGroup, path: str, spec: dict[str, Any]) -> bool:
    """Whether every rank's generators go on where they were saved."""
    seed = 10 + dist.get_rank(group)
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    draws()
    engine = engine_of(group, model(), spec)
    save(engine, path)
    expected = draws()
    draws()
    load(engine, path)
    again = draws()
    load(engine, path, rng=False)
    untouched = draws() != expected
    engine.close()
    return again == expected and untouched


def weights(group: dist.ProcessGroup, path: str, spec: dict[str, Any]) -> tuple[bool, str]:
    """Save weights only; whether plain PyTorch loads them, bit for bit, and what a second save hears."""
    net = model()
    net[4].bias.requires_grad_(False)
    net.register_buffer("seen", torch.arange(3))
    engine = engine_of(group, net, spec)
    engine.backward(net(batch(0)).square().mean())
    engine.step()
    save_weights(engine, path)
    message = heard(lambda: save_weights(engine, path))
    expected = engine.full_parameters()
    engine.close()
    plain = model()
    plain.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
    plain.load_state_dict(load_file(Path(path)))
    state = {**dict(plain.named_parameters()), "seen": plain.seen}
    return all(torch.equal(state[n], v) for n, v in {**expected, "seen": torch.arange(3)}.items()), message
