"""Wrong implementations, and a table of them: what each does to a step, always, from one on, or in one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from tests.verify.honest import Run
from zbench.workloads import Batch

Tensors = dict[str, Tensor]
Change = Callable[["WrongRun", Tensors], None]
"""Changes clipped gradients, or the parameters after an update, given those before it."""


def times(factor: float, pattern: str = "*") -> Change:
    """Scale the gradients of some parameters."""

    def change(run: "WrongRun", gradients: Tensors) -> None:
        for name in gradients:
            if fnmatchcase(name, pattern):
                gradients[name] = gradients[name] * factor

    return change


def moves(factor: float, pattern: str = "*", part: slice = slice(None)) -> Change:
    """Scale the updates of some parameters, or of a part of each."""

    def change(run: "WrongRun", old: Tensors) -> None:
        for name, master in run.masters.items():
            if fnmatchcase(name, pattern):
                moved = (master - old[name]).reshape(-1) if master.ndim == 0 else master - old[name]
                (master.reshape(-1) if master.ndim == 0 else master)[part] += (factor - 1) * moved[part]

    return change


def forgets(kind: str) -> Change:
    """Set moments to zero after the update."""

    def change(run: "WrongRun", old: Tensors) -> None:
        for state in run.state.values():
            state[kind].zero_()

    return change


def decays(share: float, pattern: str = "*") -> Change:
    """Decay weights once more, by a share of themselves."""

    def change(run: "WrongRun", old: Tensors) -> None:
        for name, master in run.masters.items():
            if fnmatchcase(name, pattern):
                master *= 1 - share

    return change


def clipped(*left_out: str, each: bool = False) -> Change:
    """Clip to 0.5, by the norm of some parameters, or each by its own."""

    def change(run: "WrongRun", gradients: Tensors) -> None:
        groups = [[n] for n in gradients] if each else [[n for n in gradients if n not in left_out]]
        for group in groups:
            norm = float(torch.stack([gradients[n].norm() for n in group]).norm())
            for name in group if each else gradients:
                gradients[name] = gradients[name] * min(1.0, 0.5 / norm)

    return change


def stale(run: "WrongRun", gradients: Tensors) -> None:
    """Take the head's gradient of the step before."""
    gradient = gradients["head.weight"]
    gradients["head.weight"] = run.kept.get("head.weight", gradient)
    run.kept["head.weight"] = gradient


def late_coefficient(run: "WrongRun", gradients: Tensors) -> None:
    """Clip by the coefficient of the step before."""
    times(run.coefficients[-2] / run.coefficients[-1])(run, gradients)


@dataclass(frozen=True)
class Wrong:
    """weight: of the loss of (rank, micro-batch). batch: the step, micro-batch and rank whose batch is taken.
    of_rank: changes what one rank adds. settings: of Adam. later: steps that it counts too many. models:
    changes what the ranks compute with, given the parameters before the update.
    """

    weight: Callable[[int, int], float] = lambda rank, micro: 1.0
    batch: Callable[[int, int, int], tuple[int, int, int]] = lambda step, micro, rank: (step, micro, rank)
    of_rank: Callable[["WrongRun", int, Tensors], None] = lambda run, rank, gradients: None
    gradients: Change = lambda run, gradients: None
    settings: Mapping[str, float] = field(default_factory=dict)
    later: int = 0
    after: Change = lambda run, old: None
    models: Change = lambda run, old: None


WRONG = {
    "rank 1's gradients are lost": Wrong(weight=lambda rank, micro: rank != 1),
    "rank 0's gradients count twice": Wrong(weight=lambda rank, micro: 2.0 - rank),
    "the last micro-batch is lost": Wrong(weight=lambda rank, micro: micro != 1),
    "ranks are summed": Wrong(weight=lambda rank, micro: 2.0),
    "losses are 2 % too large": Wrong(weight=lambda rank, micro: 1.02),
    "rank 1's loss is 5 % too small": Wrong(weight=lambda rank, micro: 1 - 0.05 * rank),
    "the head's gradient is 5 % too large": Wrong(gradients=times(1.05, "head.weight")),
    "a matrix has no gradient": Wrong(gradients=times(0.0, "blocks.1.mlp_in.weight")),
    "a matrix has the negative gradient": Wrong(gradients=times(-1.0, "blocks.0.mlp_out.weight")),
    "a bias's gradient is doubled": Wrong(gradients=times(2.0, "blocks.1.mlp_in.bias")),
    "norms' gradients are 10 % too large": Wrong(gradients=times(1.1, "*norm*")),
    "attention's gradients are 5 % too small": Wrong(gradients=times(0.95, "*attention_out*")),
    "the head's gradient is that of the step before": Wrong(gradients=stale),
    "gradients are clipped although nobody asked": Wrong(gradients=clipped()),
    "gradients are clipped without the embedding's norm": Wrong(gradients=clipped("tokens.weight")),
    "each gradient is clipped by its own norm": Wrong(gradients=clipped(each=True)),
    "updates are 1 % too long": Wrong(settings={"lr": 1.01e-3}),
    "updates are half as long, as in a warm-up": Wrong(settings={"lr": 5e-4}),
    "another beta1": Wrong(settings={"beta1": 0.88}),
    "another beta2": Wrong(settings={"beta2": 0.99}),
    "bias corrections of the next step": Wrong(later=1),
    "a matrix is not updated": Wrong(after=moves(0.0, "blocks.0.qkv.weight")),
    "biases are updated twice": Wrong(after=moves(2.0, "*.bias")),
    "the embedding's updates are 5 % too long": Wrong(after=moves(1.05, "tokens.weight")),
    "half of each tensor is updated 5 % too far": Wrong(after=moves(1.05, part=slice(0, 16))),
    "first moments are forgotten": Wrong(after=forgets("exp_avg")),
    "second moments are forgotten": Wrong(after=forgets("exp_avg_sq")),
    "norms decay by a thousandth": Wrong(after=decays(1e-3, "*norm.weight")),
}
WHEN = {"always": (0, 99), "from step 4 on": (3, 99), "in step 6": (5, 5)}


@dataclass
class WrongRun(Run):
    """A run that is wrong in steps [first, last], from 0."""

    wrong: Wrong = field(default_factory=Wrong)
    first: int = 0
    last: int = 99
    kept: Tensors = field(default_factory=dict)
    old: Tensors = field(default_factory=dict)
    coefficients: list[float] = field(default_factory=lambda: [1.0])

    @property
    def is_here(self) -> bool:
        return self.first <= self.step <= self.last

    def weight(self, rank: int, micro: int) -> float:
        return self.wrong.weight(rank, micro) if self.is_here else 1.0

    def batch(self, rank: int, micro: int) -> Batch:
        place = (self.step, micro, rank)
        return self.of.workload.batch(*(self.wrong.batch(*place) if self.is_here else place))

    def of_rank(self, gradients: Tensors, rank: int) -> Tensors:
        if self.is_here:
            self.wrong.of_rank(self, rank, gradients)
        return gradients

    def clip(self, gradients: Tensors) -> float:
        norm = super().clip(gradients)
        self.coefficients.append(min(1.0, self.of.spec.gradient_clipping / max(norm, 1e-30)))
        changed = dict(gradients)
        self.wrong.gradients(self, changed)
        if self.is_here:
            gradients.update(changed)
        return norm

    def settings(self) -> dict[str, Any]:
        return super().settings() | (self.wrong.settings if self.is_here else {})

    @property
    def later(self) -> int:  # type: ignore[override]
        return self.wrong.later if self.is_here else 0

    @torch.no_grad()
    def update(self, gradients: Tensors) -> None:
        old = {name: value.clone() for name, value in self.masters.items()}
        super().update(gradients)
        self.old = old
        if self.is_here:
            self.wrong.after(self, old)

    def publish(self) -> None:
        super().publish()
        if self.is_here:
            self.wrong.models(self, self.old)
