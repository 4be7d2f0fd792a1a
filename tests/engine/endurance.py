"""A long run in which everything is random, for `test_soak`; runs inside the pool's ranks."""

import gc
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.engine import disturbances, models
from tests.engine.holding import live
from tests.engine.lattice import reference_options
from tests.engine.plain import Options, PlainTrainer
from zbench.engine import build_engine
from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec

ELSEWHERE = ("write", "discard sums")  # refused after a backward; needs steps of several backwards
HARMLESS = [name for name in disturbances.DISTURBANCES if name not in ELSEWHERE]
KINDS = [*HARMLESS, *[""] * len(HARMLESS)]
FATAL = ("backward", "interrupt", "discard")  # they cost the step the backwards before them
FROZEN = {"gpt": "norm", "odd-together": "last", "wandering": "last"}  # the layer that is frozen at times
Micros = list[list[models.Batch]]


@dataclass(frozen=True)
class Kept:
    """What a process holds at one moment."""

    bytes: int
    files: int
    threads: int


class DrawnRun:
    """An engine's training, and what is drawn for it: the same on all ranks."""

    def __init__(self, group: dist.ProcessGroup, model: str, spec: dict[str, Any]) -> None:
        self.group, self.name, self.spec = group, model, EngineSpec.model_validate(spec)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.net, self.draw = models.make(model), random.Random()
        self.frozen = FROZEN.get(model, "layers.2")
        self.engine = build_engine(self.net, self.spec, group)

    def step(self, step: int) -> tuple[float, bool, Micros, StepInfo]:
        """Take one step; return its learning rate, whether a layer was frozen, the batches of the backwards
        that counted, and what it was.
        """
        self._at_times_resume()
        rate, frozen = self.draw.choice((1e-3, 3e-3)), self.draw.random() < 0.2
        self.engine.param_groups[0]["lr"] = rate
        self.net.get_submodule(self.frozen).requires_grad_(not frozen)
        return rate, frozen, self._backwards(step), self.engine.step()

    def _at_times_resume(self) -> None:
        if (drawn := self.draw.random()) >= 0.06:
            return
        state = self.engine.state_dict()
        if drawn < 0.03:
            self.engine.close()
            self.net = models.make(self.name)
            self.engine = build_engine(self.net, self.spec, self.group)
        self.engine.load_state_dict(state)

    def _backwards(self, step: int) -> Micros:
        marks = self.spec.accumulation_mode == "multi_backward"
        known = self.spec.accumulation_mode == "micro_steps"
        count = self.spec.gradient_accumulation_steps if known else self.draw.choice((1, 1, 2, 3))
        done: Micros = []
        for of_ranks in self._batches(step):
            data = of_ranks[self.rank]
            if kind := self.draw.choice(KINDS):
                last = len(done) == count - 1 if marks else None
                disturbances.disturb(kind, self.engine, data, first=True, last=last)
                if kind in FATAL:
                    self.engine.zero_grad()
                    done.clear()
            last = len(done) == count - 1 if marks else None
            self.engine.backward(models.loss(self.net, data), last=last)
            done.append(of_ranks)
            if len(done) == count:
                break
        return done

    def _batches(self, step: int) -> Iterator[list[models.Batch]]:
        """Yield batches by rank, without end; some leave a layer out."""
        micro = 0
        while True:
            of_ranks = [models.batch(self.name, step, micro, r) for r in range(self.world)]
            use = torch.tensor(self.draw.random() < 0.7)
            yield [(*data[:2], use) if len(data) == 3 else data for data in of_ranks]
            micro += 1


class Judge:
    """A plain trainer on rank 0, which tells the others what must have come out."""

    def __init__(self, run: DrawnRun, spec: dict[str, Any]) -> None:
        self.run, self.trainer = run, None
        if run.rank == 0:
            known = reference_options(spec)
            plan = Options(**known.pop("plan"))
            self.trainer = PlainTrainer(models.make(run.name), world_size=run.world, plan=plan, **known)

    def step(self, rate: float, frozen: bool, micros: Micros, info: StepInfo) -> None:
        """Take the same step, and compare what it was."""
        if self.trainer is None:
            return
        self.trainer.torch_groups[0]["lr"] = rate
        self.trainer.model.get_submodule(self.run.frozen).requires_grad_(not frozen)
        self.trainer.step(models.loss, micros)
        assert info.skipped == self.trainer.skipped[-1]
        assert info.grad_norm is None or str(info.grad_norm) == str(self.trainer.norms[-1])

    def expected(self) -> dict[str, Tensor]:
        """Return what every parameter must be now; let go of what the last step left."""
        told: list[Any] = [None]
        if self.trainer is not None:
            told = [self.trainer.trajectory().parameters]
            for p in (*self.trainer.model.parameters(), *self.trainer.masters.values()):
                p.grad = None
            self.trainer.norms.clear()
            self.trainer.skipped.clear()
        dist.broadcast_object_list(told, src=0, group=self.run.group)
        values: dict[str, Tensor] = told[0]
        return values


def endure(
    group: dist.ProcessGroup, model: str, spec: dict[str, Any], steps: int, rounds: int, seed: int
) -> list[Kept]:
    """Train `rounds` times `steps` beside a plain trainer, comparing all bits at times; return what is held
    after each round.

    Random: the backwards of each step, which of them leave a layer out, what fails or is done beside them,
    the learning rate, which layers are frozen, and where training resumes from a checkpoint. Every round
    draws the same, on other data, so each must end with what the first held.
    """
    gc.collect()
    gc.freeze()
    run = DrawnRun(group, model, spec)
    judge = Judge(run, spec)
    held = []
    for step in range(rounds * steps):
        if step % steps == 0:
            run.draw = random.Random(seed)
        judge.step(*run.step(step))
        if (step + 1) % steps in (0, steps // 2):
            expected = judge.expected()
            for name, value in run.engine.full_parameters().items():
                assert torch.equal(value, expected[name]), f"{name} differs after step {step}"
        if (step + 1) % steps == 0:
            held.append(Kept(live(), *(len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))))
    run.engine.close()
    return held
