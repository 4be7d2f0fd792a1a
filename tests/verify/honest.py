"""Another implementation of a training, right or with a fault: torch's own Adam, in its other kernels.

All ranks run in this process. What a rank of a trial observes goes to the verdict as in a trial.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from tests.verify.runs import task
from tests.zoo.sampling import DrawnRun
from zbench.verify import sums
from zbench.verify.buffers import BufferLog, judge_buffers
from zbench.verify.diagnosis import Finding
from zbench.verify.distance import SMALLEST, Distances
from zbench.verify.evidence import Witness, adam_of, judge_copies
from zbench.verify.plain_numerics import settings_of, torch_dtype
from zbench.verify.plain_training import PlainTask, cast_module
from zbench.verify.replay import KINDS, Parts, Residual, replay
from zbench.verify.slope import gradient_sums
from zbench.verify.sums import digest, signed_sums
from zbench.verify.trajectory import Reference, Trajectory
from zbench.verify.verdict import FinalState, Judgement, judge
from zbench.workloads import Batch, seed_all

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
        self.models = [self.of.workload.make_model() for _ in range(self.of.workload.world_size)]
        trained = {n: p for n, p in self.models[0].named_parameters() if p.requires_grad}
        self.masters = {n: p.detach().clone() for n, p in trained.items()}
        kinds = KINDS[1:] if self.of.spec.optimizer.amsgrad else KINDS[1:3]
        self.state = {n: {k: torch.zeros_like(p) for k in kinds} for n, p in self.masters.items()}
        self.counts = dict.fromkeys(self.masters, 0)
        dtype = torch_dtype(self.of.spec.dtype)
        for model in self.models:
            cast_module(model, dtype, dtype)
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
                loss = work.loss(self.models[rank], self.batch(rank, micro))
                (loss * (self.weight(rank, micro) / backwards * scale)).backward()
                losses[0].append(float(loss.detach()))
            named = dict(self.models[rank].named_parameters())
            own = {
                n: p.grad.float() / scale / work.world_size for n, p in named.items() if p.grad is not None
            }
            self.models[rank].zero_grad()
            for name, gradient in self.of_rank(own, rank).items():
                total[name] = total[name] + gradient if name in total else gradient
        return total, losses

    def batch(self, rank: int, micro: int) -> Batch:
        """Return what a rank computes a micro-batch's loss of."""
        return self.of.workload.batch(self.step, micro, rank)

    def of_rank(self, gradients: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
        """Return the gradients that a rank adds to those of the ranks before."""
        return gradients

    def weight(self, rank: int, micro: int) -> float:
        """Return what a micro-batch's loss counts."""
        return 1.0

    def settings(self) -> dict[str, Any]:
        """Return what Adam is given."""
        settings = settings_of(self.of.spec.optimizer, None)
        assert settings.pop("bias_correction")
        return settings

    later = 0
    """How many steps too many Adam counts."""

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
        """Update the parameters that have a gradient."""
        count = [torch.tensor(float(self.counts[name] + self.later)) for name in gradients]
        states = [self.state[name] for name in gradients]
        moments = [[state[kind] for state in states if kind in state] for kind in KINDS[1:]]
        with capturable_on_a_cpu():
            kernel(self.kernel)(
                [self.masters[name] for name in gradients], list(gradients.values()), *moments, count,
                decoupled_weight_decay=self.of.spec.optimizer.name == "adamw", maximize=False,
                **self.settings(),
            )  # fmt: skip
        for name in gradients:
            self.counts[name] += 1

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model of each rank."""
        for model in self.models:
            for name, parameter in model.named_parameters():
                if name in self.masters:
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

    def observe(self, reference: Reference) -> tuple[Trajectory, FinalState, Witness]:
        """Train, and return what an observer notes."""
        losses = []
        norms = []
        digests = []
        residuals = list[Residual]()
        first = {name: digest(value) for name, value in self.masters.items()}
        gradients: dict[str, Tensor] = {}
        copies = list[Finding]()
        logs = [BufferLog() for _ in self.models]
        for log, model in zip(logs, self.models, strict=True):
            log.note(model)
        seen = [self.sketches()]
        for step in range(self.of.steps):
            self.step = step
            before = self.parts()
            of_step, norm = self.train()
            losses.append(of_step)
            norms.append(norm)
            seen.append(self.sketches())
            for log, model in zip(logs, self.models, strict=True):
                log.note(model)
            digests.append([digest(value) for value in self.masters.values()])
            if self.step == 0:
                gradients = {n: s["exp_avg"] / (1 - self.adams[n].beta1) for n, s in self.state.items()}
            if self.step in {self.drawn, self.of.steps - 1}:
                copies += [one for rank in range(len(self.models)) for one in self.stray_copies(rank)]
            if self.step in {0, 1, self.drawn, self.of.steps - 1}:
                active = dict(zip(reference.plain.names, reference.active[self.step].tolist(), strict=True))
                counts = {name: count * active[name] for name, count in self.counts.items()}
                residuals += replay(before, self.parts(), self.adams, counts, rank=0, step=self.step)
        trajectory = Trajectory(
            names=tuple(self.masters),
            losses=torch.tensor(losses, dtype=torch.float64),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.tensor(digests, dtype=torch.int64),
            sketches=torch.stack(seen),
        )
        final = final_state(
            self.masters, {name: state["exp_avg"] for name, state in self.state.items()}, reference
        )
        findings = copies + [
            finding
            for rank, model in enumerate(self.models)
            for finding in judge_buffers(model, reference, self.adams, rank, logs[rank])
        ]
        plain = {
            name: reference.gradients[name][:] if name in reference.gradients else torch.zeros_like(value)
            for name, value in self.masters.items()
        }
        sums = gradient_sums(gradients, plain, reference.true_gradients)
        first_sums = {name: torch.from_numpy(signed_sums(value)) for name, value in gradients.items()}
        dtype = self.of.spec.dtype
        witness = Witness(self.adams, residuals, None, None, sums, first_sums, first, findings, dtype)
        return trajectory, final, witness

    def stray_copies(self, rank: int) -> list[Finding]:
        """Return whether a rank's model has other weights than the masters."""
        named = self.models[rank].named_parameters()
        of_model = {name: value for name, value in named if name in self.masters}
        rounded = {name: self.masters[name].to(value.dtype) for name, value in of_model.items()}
        return judge_copies([n for n, value in of_model.items() if digest(value) != digest(rounded[n])], rank)

    def sketches(self) -> Tensor:
        moments = {name: s["exp_avg"] for name, s in self.state.items()}
        both = (self.masters, moments)
        taker = sums.RunSums(
            [sums.Run.whole(n, p.shape) for n, p in self.masters.items()], torch.device("cpu")
        )
        of_each = taker.signed_sums(*([values[n].reshape(-1) for n in self.masters] for values in both))
        return torch.from_numpy(of_each.transpose(1, 0, 2))

    def judged(self, reference: Reference) -> Judgement:
        observed, final, witness = self.observe(reference)
        return judge(observed, final, reference, witness)


def final_state(
    parameters: Mapping[str, Tensor], moments: Mapping[str, Tensor], reference: Reference
) -> FinalState:
    """Return how far whole final tensors are from a reference's."""
    names, clipping = reference.plain.names, float(reference.clipping_error)
    sizes = reference.travelled / torch.tensor([reference.elements(name) for name in names]).sqrt()
    weights = _distances(parameters, reference, "parameters", "truth", sizes * clipping)
    if not moments or not reference.true_moments:
        return FinalState(weights)
    least = reference.moment_sizes * clipping
    return FinalState(weights, _distances(moments, reference, "moments", "true_moments", least))


def _distances(
    values: Mapping[str, Tensor], reference: Reference, plain: str, true: str, least: Tensor
) -> Distances:
    result = Distances.empty(len(values))
    runs = (getattr(reference, plain), getattr(reference, true), reference.weights)
    for at, name in enumerate(reference.plain.names):
        plainly, exact, weights = (run[name][:] if name in run else None for run in runs)
        flat = values[name].reshape(-1).float()
        result.add(at, flat, plainly, exact, weights, max(SMALLEST, float(least[at])))
    return result


def task_of(drawn: DrawnRun) -> PlainTask:
    """Return a drawn training run as the task of a reference."""
    return task(
        drawn.workload, steps=drawn.steps, seed=drawn.seed, world_size=drawn.world_size, **drawn.engine
    )
