"""Another implementation of a training, right or with a fault: torch's own Adam, in its other kernels.

All ranks run in this process. What a rank of a trial observes goes to the verdict as in a trial.
"""

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from tests.verify.runs import task
from zbench.verify.evidence import Witness, adam_of
from zbench.verify.plain_numerics import settings_of, torch_dtype
from zbench.verify.plain_training import PlainTask, cast_module
from zbench.verify.replay import KINDS, Parts, Residual, replay
from zbench.verify.sketches import sketches
from zbench.verify.trajectory import Reference, Trajectory, digest
from zbench.verify.verdict import Judgement, judge
from zbench.workloads import seed_all

KERNELS: dict[str, dict[str, bool]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"foreach": True, "capturable": True},
    "compiled": {"foreach": True, "capturable": True},
}


@contextmanager
def capturable_on_a_cpu() -> Iterator[None]:
    """Let torch take the arithmetic of CUDA graphs on a CPU, which its own check refuses."""
    name = "_get_capturable_supported_devices"
    module = importlib.import_module("torch.optim.adam")
    before = getattr(module, name)
    setattr(module, name, lambda *_, **__: ["cpu"])
    try:
        yield
    finally:
        setattr(module, name, before)


@cache
def kernel(name: str) -> Callable[..., None]:
    """Return torch's functional Adam, compiled or not."""
    function = partial(adam, **KERNELS[name])
    return torch.compile(function, dynamic=False) if name == "compiled" else function


@dataclass
class Run:
    """One run of `of` by torch's kernel of this name. A subclass breaks something.

    names: of the parameters. masters, moments: float32, by name. step: from 0.
    """

    of: PlainTask
    kernel: str = "foreach"
    drawn: int = 2
    step: int = 0
    masters: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = self.of.workload.make_model()
        self.masters = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        kinds = KINDS[1:] if self.of.spec.optimizer.amsgrad else KINDS[1:3]
        self.state = {n: {k: torch.zeros_like(p) for k in kinds} for n, p in self.masters.items()}
        dtype = torch_dtype(self.of.spec.dtype)
        cast_module(self.model, dtype, dtype)
        self.adams = {name: adam_of(name, self.of.spec) for name in self.masters}

    def gradients(self) -> tuple[dict[str, Tensor], list[list[float]]]:
        """Return the averaged gradients in float32, as DDP adds them up, and the losses [rank][micro]."""
        work, backwards = self.of.workload, self.of.accumulation.backwards
        scale = self.of.spec.initial_loss_scale if self.of.spec.dtype == "float16" else 1.0
        total: dict[str, Tensor] = {}
        losses = []
        for rank in reversed(range(work.world_size)):
            losses.insert(0, [])
            for micro in range(backwards):
                seed_all(work.micro_seed(self.step, micro, rank), self.of.device)
                loss = work.loss(self.model, work.batch(self.step, micro, rank))
                (loss * (self.weight(rank, micro) / backwards * scale)).backward()
                losses[0].append(float(loss.detach()))
            for name, parameter in self.model.named_parameters():
                assert parameter.grad is not None
                gradient = parameter.grad.float() / scale / work.world_size
                total[name] = total[name] + gradient if name in total else gradient
                parameter.grad = None
        return total, losses

    def weight(self, rank: int, micro: int) -> float:
        """Return what a micro-batch's loss counts."""
        return 1.0

    def settings(self) -> dict[str, Any]:
        """Return what Adam is given."""
        settings = settings_of(self.of.spec.optimizer, None)
        assert settings.pop("bias_correction")
        return settings

    @property
    def count(self) -> int:
        """How many updates Adam believes there were."""
        return self.step

    def clip(self, gradients: dict[str, Tensor]) -> float:
        if not self.of.spec.gradient_clipping:
            return float("nan")
        for name, gradient in gradients.items():
            self.masters[name].grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.of.spec.gradient_clipping)
        for master in self.masters.values():
            master.grad = None
        return float(norm)

    @torch.no_grad()
    def update(self, gradients: dict[str, Tensor]) -> None:
        count = [torch.tensor(float(self.count)) for _ in self.masters]
        moments = [[s[kind] for s in self.state.values() if kind in s] for kind in KINDS[1:]]
        with capturable_on_a_cpu():
            kernel(self.kernel)(
                list(self.masters.values()), [gradients[n] for n in self.masters], *moments, count,
                decoupled_weight_decay=self.of.spec.optimizer.name == "adamw", maximize=False,
                **self.settings(),
            )  # fmt: skip

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.masters[name])

    def train(self) -> tuple[list[list[float]], float]:
        """Run one step; return its losses and the norm."""
        gradients, losses = self.gradients()
        norm = self.clip(gradients)
        self.update(gradients)
        self.publish()
        return losses, norm

    def parts(self) -> Parts:
        """Return copies of masters and moments."""
        return {
            f"{n}@0": {
                "param": p.flatten().clone(),
                **{k: v.flatten().clone() for k, v in self.state[n].items()},
            }
            for n, p in self.masters.items()
        }

    def observe(self) -> tuple[Trajectory, Witness]:
        """Train, and return what an observer notes."""
        losses = []
        norms = []
        digests = []
        residuals = list[Residual]()
        first = {name: digest(value) for name, value in self.masters.items()}
        gradients: dict[str, Tensor] = {}
        seen = [self.sketches()]
        for step in range(self.of.steps):
            self.step = step
            before = self.parts()
            of_step, norm = self.train()
            losses.append(of_step)
            norms.append(norm)
            seen.append(self.sketches())
            digests.append([digest(value) for value in self.masters.values()])
            if self.step == 0:
                gradients = {n: s["exp_avg"] / (1 - self.adams[n].beta1) for n, s in self.state.items()}
            if self.step in {0, 1, self.drawn, self.of.steps - 1}:
                counts = dict.fromkeys(self.masters, self.step + 1)
                residuals += replay(before, self.parts(), self.adams, counts, rank=0, step=self.step)
        trajectory = Trajectory(
            names=tuple(self.masters),
            losses=torch.tensor(losses, dtype=torch.float64),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.tensor(digests, dtype=torch.int64),
            parameters={name: value.clone() for name, value in self.masters.items()},
            moments={name: s["exp_avg"].clone() for name, s in self.state.items()},
            sketches=torch.stack(seen),
        )
        witness = Witness(self.adams, residuals, None, None, gradients, first, [], self.of.spec.dtype)
        return trajectory, witness

    def sketches(self) -> Tensor:
        moments = {name: s["exp_avg"] for name, s in self.state.items()}
        both = (self.masters, moments)
        return torch.stack([sketches(values, list(self.masters)) for values in both], dim=1)

    def judged(self, reference: Reference) -> Judgement:
        observed, witness = self.observe()
        return judge(observed, reference, witness)


RATES = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
BETAS = ((0.9, 0.999), (0.9, 0.95), (0.9, 0.98), (0.8, 0.99), (0.5, 0.9), (0.95, 0.9999), (0.0, 0.99))
EPS = (1e-8, 1e-8, 1e-6, 1e-5)


def drawn_task(lot: random.Random) -> PlainTask:
    """Return a small training that a lot chose: attention models, and MLPs."""
    if lot.random() < 0.6:
        options: dict[str, object] = {
            "layers": lot.choice([1, 2, 3]),
            "width": lot.choice([16, 32, 64]),
            "heads": 2,
            "vocabulary": 64,
        }
        model = "gpt"
        steps = lot.choice([1, 3, 8, 20])
    else:
        options = {"hidden": lot.choice([16, 64]), "vocabulary": 64}
        model = "mlp"
        steps = lot.choice([1, 3, 8, 20])
    workload: dict[str, object] = {
        "model": model,
        "options": options,
        "sequence_length": 16,
        "micro_batch_size": 2,
    }
    engine = {
        "dtype": lot.choice(["float32", "float32", "bfloat16"]),
        "gradient_clipping": lot.choice([0.0, 0.5, 1.0]),
        "gradient_accumulation_steps": lot.choice([1, 2]),
        "optimizer": {
            "name": lot.choice(["adam", "adamw", "adamw"]),
            "lr": lot.choice(RATES),
            "betas": lot.choice(BETAS),
            "eps": lot.choice(EPS),
            "weight_decay": lot.choice([0.0, 1e-2, 0.1]),
            "amsgrad": lot.random() < 0.2,
        },
    }
    return task(workload, steps=steps, seed=lot.randrange(1 << 30), world_size=2, **engine)
