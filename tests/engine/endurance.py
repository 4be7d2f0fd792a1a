"""A long run in which everything is random, for `test_soak`; runs inside the pool's ranks."""

import gc
import random
from typing import Any

import torch
import torch.distributed as dist

from tests.engine import disturbances, models
from tests.engine.holding import live
from tests.engine.plain import Options, PlainTrainer
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec

KINDS = [*disturbances.DISTURBANCES, *[""] * len(disturbances.DISTURBANCES)]
MODEL = "odd-together"


def endure(group: dist.ProcessGroup, spec: dict[str, Any], steps: int, seed: int) -> list[int]:
    """Train for `steps` beside a plain trainer and compare all bits 8 times; return the bytes held then.

    Random, and the same on all ranks: the backwards of each step, which of them leave a layer out, what fails
    or is done beside them, the learning rate, and which layers are frozen.
    """
    gc.collect()
    gc.freeze()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    model, draw = models.make(MODEL), random.Random(seed)
    engine = build_engine(model, EngineSpec.model_validate(spec), group)
    plan = Options(max_norm=spec["gradient_clipping"], each_backward=spec["zero_stage"] >= 2)
    trainer = PlainTrainer(models.make(MODEL), world_size=world, optimizer={"lr": 1e-3}, plan=plan)
    marks = spec["accumulation_mode"] == "multi_backward"
    held = []
    for step in range(steps):
        rate, frozen = draw.choice((1e-3, 3e-3)), draw.random() < 0.2
        for net, groups in ((model, engine.param_groups), (trainer.model, trainer.torch_groups)):
            groups[0]["lr"] = rate
            net.get_submodule("last").requires_grad_(not frozen)
        micros = []
        count = draw.choice((1, 1, 2, 3))
        for micro in range(count):
            use = torch.tensor(draw.random() < 0.7)
            micros.append([(*models.batch(MODEL, step, micro, r)[:2], use) for r in range(world)])
        of_ranks: list[models.Batch] | None
        for micro, of_ranks in enumerate(micros):
            last = (micro == count - 1) if marks else None
            if kind := draw.choice(KINDS):
                disturbances.disturb(kind, engine, of_ranks[rank], first=micro == 0, last=last)
            engine.backward(models.loss(model, of_ranks[rank]), last=last)
        engine.step()
        trainer.step(models.loss, micros)
        if (step + 1) % max(steps // 8, 1) == 0:
            micros.clear()
            of_ranks = None
            _forget(trainer)
            held.append(live())
            expected = trainer.trajectory().parameters
            for name, value in engine.full_parameters().items():
                assert torch.equal(value, expected[name]), f"{name} differs after step {step}"
    engine.close()
    gc.unfreeze()
    return held


def _forget(trainer: PlainTrainer) -> None:
    """Let go of what the plain trainer keeps of its last step."""
    for p in (*trainer.model.parameters(), *trainer.masters.values()):
        p.grad = None
    trainer.norms.clear()
    trainer.skipped.clear()
