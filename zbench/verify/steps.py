"""Every step by its sketches: the update and the gradient of each, regressed on those of the float64 run.

The first step that differs by more than rounding explains is named: after it the run is another one. What is
too small to be seen in one step is looked for in all steps together, in the last half and the last quarter.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from zbench.verify.diagnosis import Finding, percent
from zbench.verify.distance import TINY
from zbench.verify.limits import (
    ALONE_UP_TO,
    CHAOTIC_BELOW,
    COVERED_UP_TO,
    DIVERGED,
    FIRST_TIMES_FROM,
    FOLDED,
    KINKS_FROM,
    LEAST_GROUP,
    LEAST_REST,
    LEAST_SHARE,
    LEAST_STEPS,
    LEAST_WAY,
    LOSS_ROUNDINGS,
    LOSSES_UP_TO,
    NEAR,
    OF_CONSTANTS,
    ONE_ROUNDING,
    STEP_TIMES_CONSTANTS,
    TELLS_UP_TO,
    TURNED_ROUND,
    TYPICAL_REST_UP_TO,
    UPDATES_UP_TO,
    WRONG_FROM,
)
from zbench.verify.noise import can_be_compared
from zbench.verify.replay import Adam, most_in_float32
from zbench.verify.shares import Shares, in_groups
from zbench.verify.slope import common_limit, factor_in_words
from zbench.verify.step_judge import Fault, Scale, StepJudge
from zbench.verify.trajectory import Reference, Trajectory


@dataclass(frozen=True, slots=True)
class JudgedSteps:
    """The fault of the first step that has one, and the number of steps in which a fault of a quarter of all
    gradients would have been named. left: the step (from 1) from which on the trial is another trajectory of
    the same training; 0 if there is none. A kink of the model has made its gradients jump, or one rounding
    has turned an element round, and nothing of the kind has happened to the reference.
    """

    findings: list[Finding] = field(default_factory=list)
    covered: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a step, by whole parameters, and by groups of their sums; None of several steps together."""

    shares: Shares
    groups: Shares | None

    @classmethod
    def together(cls, terms: Sequence["_Term"]) -> "_Term":
        """Return the term of several steps."""
        columns = (torch.stack([getattr(term.shares, one.name) for term in terms]) for one in fields(Shares))
        return cls(Shares(*columns).pooled(), None)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step, or `count` together. first: from 1. farther: see `_farther`. readable: the share of its
    gradients that are usable.
    """

    first: int
    count: int
    farther: float
    update: _Term
    gradient: _Term
    readable: float = 1.0

    @classmethod
    def together(cls, steps: Sequence["_Step"]) -> "_Step":
        """Return several steps as one."""
        terms = (_Term.together([step.update for step in steps]), _Term.together([s.gradient for s in steps]))
        return cls(steps[0].first, len(steps), max(step.farther for step in steps), *terms)

    @property
    def when(self) -> str:
        """Which steps, in words."""
        return f"in step {self.first}" if self.count == 1 else f"from step {self.first} on"


class _Judges:
    """The judges of the update and of the gradient."""

    def __init__(self, reference: Reference, adams: Mapping[str, Adam], dtype: str) -> None:
        names = reference.plain.names
        steps = len(reference.plain.digests)
        shares = [STEP_TIMES_CONSTANTS * most_in_float32(adams[name], steps) for name in names]
        constants = torch.tensor(shares, dtype=torch.float64).clamp(min=OF_CONSTANTS)
        clipping = float(reference.clipping_error)
        whole = common_limit(dtype, clipping) if clipping > 0 else ALONE_UP_TO[dtype]
        rest = (ONE_ROUNDING[dtype], LEAST_REST[dtype], TYPICAL_REST_UP_TO[dtype], KINKS_FROM[dtype])
        far = FIRST_TIMES_FROM[dtype]
        elements = torch.tensor([max(1, reference.elements(name)) for name in names], dtype=torch.float64)
        of_update = Scale(LEAST_SHARE, UPDATES_UP_TO[dtype], *rest, constants, elements, TURNED_ROUND, far)
        of_gradient = Scale(ALONE_UP_TO[dtype], whole, *rest, constants, elements, 0, far)
        self._update = StepJudge(names, adams, of_update)
        self._gradient = StepJudge(names, adams, of_gradient)
        self._ranks_and_backwards = reference.plain.losses.shape[1:]

    def unsure(self, step: _Step) -> float:
        """Return by which share the trajectory may have changed the terms of later steps."""
        return self._readable(step).unsure(step.farther)

    def limit(self, step: _Step) -> float:
        """Return by which share a step that was judged might be off, and not be named."""
        return self._readable(step).limit

    def _readable(self, step: _Step) -> StepJudge:
        return self._gradient if bool(step.gradient.shares.usable.any()) else self._update

    def has_left(self, step: _Step) -> bool:
        """Say whether the trial is another trajectory of the same training from a step on, and the reference
        not yet: more of later steps is decided than is covered.
        """
        judge = self._readable(step)
        has_jumped = judge.has_turned or DIVERGED * judge.jumped > LEAST_WAY
        is_far = has_jumped or judge.unsure(step.farther) > COVERED_UP_TO
        return is_far and judge.unsure_reference <= COVERED_UP_TO

    def finding(self, step: _Step) -> Finding | None:
        """Return what is wrong with a step: a lost update, its gradient, or its update."""
        update, gradient = (
            judge.faulty(term.shares, term.groups, step.farther, step.count)
            for judge, term in ((self._update, step.update), (self._gradient, step.gradient))
        )
        if update is not None and update.share is not None and abs(abs(update.share) - 1) < NEAR:
            fault = "is lost" if update.share < 0 else "is done twice"
            where = "" if update.where == "all parameters" else f" ({update.where})"
            return Finding(1.0, f"the update of step {step.first} {fault}{where}")
        if gradient is not None:
            return Finding(gradient.size, f"{self._gradient_in_words(gradient)} {step.when}")
        if update is not None:
            return Finding(update.size, f"{_update_in_words(update)} {step.when}")
        return None

    def _gradient_in_words(self, fault: Fault) -> str:
        if fault.share is None:
            return f"gradients {percent(fault.size)} off ({fault.where})"
        return factor_in_words(1 + fault.share, fault.where, *self._ranks_and_backwards)


def _update_in_words(fault: Fault) -> str:
    if fault.share is None:
        return f"updates {percent(fault.size)} off ({fault.where})"
    return f"updates {percent(fault.share)} too {'long' if fault.share > 0 else 'short'} ({fault.where})"


def judge_steps(
    observed: Trajectory, reference: Reference, adams: Mapping[str, Adam], dtype: str
) -> JudgedSteps:
    """Return the fault of the first step that has one, of several, or of the losses.

    Steps count up to the one from which on the trajectory decides more than the training does.
    """
    if observed.skipped != reference.plain.skipped:
        return JudgedSteps()
    plain, true = reference.plain.sketches, reference.true_sketches
    if not can_be_compared(observed.sketches, plain, true):
        return JudgedSteps(_judge_losses(observed, reference, dtype, len(observed.losses)))
    judges = _Judges(reference, adams, dtype)
    steps = list[_Step]()
    most = 0.0
    horizon, covered, left = len(plain), len(reference.active), 0
    for step in _steps(observed, reference, adams, ONE_ROUNDING[dtype]):
        most = max(most, step.readable)
        is_chaotic = step.readable < CHAOTIC_BELOW * most
        finding = None if is_chaotic else judges.finding(step)
        unsure = judges.unsure(step)
        if is_chaotic or max(unsure, judges.limit(step)) > COVERED_UP_TO:
            covered = min(covered, step.first - 1)
        if judges.has_left(step) and left == 0:
            left = step.first
        if finding is not None:
            return JudgedSteps([finding], covered)
        if is_chaotic or unsure > TELLS_UP_TO:
            horizon = step.first - 1
            break
        steps.append(step)
    for count in (len(steps), len(steps) // 2, len(steps) // 4):
        if count >= LEAST_STEPS and (finding := judges.finding(_Step.together(steps[-count:]))):
            return JudgedSteps([finding], covered)
    return JudgedSteps(_judge_losses(observed, reference, dtype, horizon), covered, left)


def _steps(
    observed: Trajectory, reference: Reference, adams: Mapping[str, Adam], unit: float
) -> Iterator[_Step]:
    """Yield the steps that were not skipped. unit: one rounding.

    Errors grow faster than the reference shows if an update changes the weights by as much as they are: then
    a trial is taken for farther away.
    """
    runs = (observed.sketches, reference.plain.sketches, reference.true_sketches)
    of_each = [adams[name] for name in reference.plain.names]
    beta1 = torch.tensor([adam.beta1 for adam in of_each], dtype=torch.float64)[:, None]
    decay = torch.tensor(  # is no gradient, but Adam takes it for one
        [0.0 if adam.decoupled else adam.weight_decay for adam in of_each], dtype=torch.float64
    )[:, None]
    shows_moments = bool((observed.sketches[:, :, 1] != 0).any())  # zeros: no rank could read any
    longest = 0.0
    for step, active in enumerate(reference.active):
        if step in observed.skipped:
            continue
        before, after = ([run[at] for run in runs] for at in (step, step + 1))
        pairs = list(zip(before, after, strict=True))
        moves = [new[:, 0] - old[:, 0] for old, new in pairs]
        gradients = [(new[:, 1] - beta1 * old[:, 1]) / (1 - beta1) - decay * old[:, 0] for old, new in pairs]
        farther = _farther(before) * (1 + FOLDED * longest)
        longest = max(longest, float(moves[2].norm() / before[2][:, 0].norm().clamp(min=TINY)))
        update = _term(moves, active, farther, unit, before[1][:, 0])
        gradient = _term(gradients, active & shows_moments, farther, unit)
        readable = int(gradient.shares.usable.sum()) / max(1, int(active.sum()))
        yield _Step(step + 1, 1, farther, update, gradient, readable)


def _term(
    runs: Sequence[Tensor], active: Tensor, farther: float, unit: float, weights: Tensor | None = None
) -> _Term:
    """Return the term of trial, plain and true run, each [P, N]. weights: those before the step, if it rounds
    them.
    """
    shares = Shares.of(runs, active, weights)
    of_groups = [in_groups(run) for run in runs]
    size = runs[2].square().sum(dim=1, keepdim=True)
    is_read = shares.usable[:, None] & (of_groups[2].square().sum(dim=2) > LEAST_GROUP * size)
    groups = Shares.of(of_groups, is_read, None if weights is None else in_groups(weights))
    return _Term(shares.beside_kinks(farther, unit), groups)


def _farther(before: Sequence[Tensor]) -> float:
    """Return how many times as far a trial is from the reference, as that from the float64 run: at least 1.
    It is that of all parameters, or of the median one, since a single one may have most of the distance.
    """
    trial, plain, true = (sketches[:, 0] for sketches in before)
    apart, errors = (trial - plain).norm(dim=1), (plain - true).norm(dim=1)
    of_each: list[float] = (apart / errors)[errors > 0].tolist()
    overall = float(apart.norm() / errors.norm()) if of_each else 1.0
    return max(1.0, overall, statistics.median(of_each or [1.0]))


def _judge_losses(observed: Trajectory, reference: Reference, dtype: str, horizon: int) -> list[Finding]:
    """Return the first of `horizon` steps whose losses are further from the reference's than rounding
    explains.
    """
    ours, plain, true = observed.losses, reference.plain.losses, reference.true_losses
    if ours.shape != plain.shape or true.shape != plain.shape:
        return []
    apart, errors, size = (x.abs().flatten(1).mean(dim=1) for x in (ours - plain, plain - true, plain))
    most = torch.from_numpy(np.maximum.accumulate(errors.numpy()))
    runs = (observed.sketches, reference.plain.sketches, reference.true_sketches)
    looked = can_be_compared(*runs) and len(runs[0]) > len(apart)
    farther = [_farther([run[at] for run in runs]) if looked else 1.0 for at in range(len(apart))]
    limits = (
        LOSSES_UP_TO * most * torch.tensor(farther)
        + (LOSS_ROUNDINGS * ONE_ROUNDING[dtype] + LEAST_SHARE) * size
    )
    bad = (apart > limits)[:horizon]
    if not bool(bad.any()):
        return []
    step = int(bad.nonzero()[0])
    share = float(apart[step] / size[step])
    return [Finding(min(share, WRONG_FROM / 2), f"losses {percent(share)} off from step {step + 1} on")]
