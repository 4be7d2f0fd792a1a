"""The evidence of a trial besides its trajectory, and its findings: faults, and what was not checked."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.record.record import Coefficient
from zbench.spec.engine import EngineSpec
from zbench.verify.diagnosis import Finding, judge_update
from zbench.verify.limits import ONE_ROUNDING
from zbench.verify.plain_numerics import group_named, settings_of
from zbench.verify.replay import Adam, Parts, Residual
from zbench.verify.slope import GradientSums, common_limit, factor_in_words, judge_gradient, shares
from zbench.verify.steps import JudgedSteps, judge_steps
from zbench.verify.trajectory import Reference, Trajectory


@dataclass(frozen=True, slots=True)
class Witness:
    """The replayed updates and the state that was read, of all ranks.

    unread, unread_moments: why the update, and the gradient, cannot be read. gradients: sums over the
    gradients of the first update, in the order of the reference's names; None if they cannot be read.
    first_sums: the signed sums [128] of these gradients, by name. first: digests of all parameters before the
    first step. findings: of each rank's buffers and of its copies of the weights.
    """

    adams: Mapping[str, Adam]
    residuals: Sequence[Residual]
    unread: str | None
    unread_moments: str | None
    gradients: GradientSums | None
    first_sums: Mapping[str, Tensor]
    first: Mapping[str, int]
    findings: Sequence[Finding]
    dtype: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What the evidence shows: faults, the gravest first; measured coefficients; what was not checked, and
    why; and what was seen of the steps.
    """

    findings: list[Finding]
    coefficients: list[Coefficient]
    unchecked: dict[str, str]
    steps: JudgedSteps


def adam_of(name: str, spec: EngineSpec) -> Adam:
    """Return the hyperparameters of a parameter's updates."""
    pattern, group = group_named(name, spec.param_groups)
    settings = settings_of(spec.optimizer, group)
    return Adam(**settings, decoupled=spec.optimizer.name == "adamw", group=pattern)


def examine(observed: Trajectory, reference: Reference, evidence: Witness) -> Examined:
    """Examine a finite run."""
    updates, of_update = judge_update(evidence.residuals, evidence.adams)
    scale, of_gradient, scale_checked = _judge_scale(observed, reference, evidence)
    state = [*_judge_untrained(observed, reference, evidence), *evidence.findings]
    unchecked = {}
    if missing := _not_replayed(reference, evidence):
        unchecked["update"] = missing
    if not scale_checked:
        neither = "the engine reports neither first_moments() nor gradient norms"
        unchecked["scale"] = evidence.unread_moments or neither
    faults = [*scale, *updates, *state]
    steps = judge_steps(observed, reference, evidence.adams, evidence.dtype)
    faults = [fault for fault in faults if not (fault.by_distance and steps.left)]
    if all(fault.gravity != "wrong" for fault in faults):  # a lost step leaves small faults in later ones
        faults += [one for one in steps.findings if not faults or one.gravity == "wrong"]
    findings = sorted(faults, key=lambda finding: finding.gravity != "wrong")
    return Examined(findings, [*of_gradient, *of_update], unchecked, steps)


def _not_replayed(reference: Reference, evidence: Witness) -> str | None:
    """Return why a part of the update was not replayed; None if all of it was."""
    if evidence.unread is not None:
        return evidence.unread
    counts: Counter[tuple[str, int]] = Counter()
    for one in evidence.residuals:
        counts[one.parameter, one.step] += one.elements
    most = {name: max(counts[key] for key in counts if key[0] == name) for name, _ in counts}
    active = reference.active[sorted({step for _, step in counts})] if counts else reference.active
    for at, name in enumerate(reference.plain.names):
        count, elements = most.get(name, 0), reference.elements(name)
        if bool(active[:, at].any()) and count < elements:
            return f"optimizer_parts() has moments of {count:,} of {elements:,} elements of {name}"
    return None


def _judge_scale(
    observed: Trajectory, reference: Reference, evidence: Witness
) -> tuple[list[Finding], list[Coefficient], bool]:
    """Return the faults of the first step's gradient, its coefficient, and whether it could be judged."""
    if observed.skipped != reference.plain.skipped:
        return [], [], True  # told by a warning
    first = next((s for s in range(len(observed.grad_norms)) if s not in observed.skipped), 0)
    if evidence.gradients is not None and reference.gradients:
        of_each = evidence.gradients.slopes(reference.plain.names)
        parts = shares(evidence.first_sums, reference.contributions) if reference.contributions else None
        clipping = float(reference.clipping_error)
        has_truth = bool(reference.true_gradients)
        judged = judge_gradient(of_each, parts, evidence.dtype, evidence.adams, clipping, has_truth=has_truth)
        return *judged, True
    norm, reference_norm = float(observed.grad_norms[first]), float(reference.plain.grad_norms[first])
    if not math.isfinite(norm) or not reference_norm > 0:
        return [], [], False
    factor = norm / reference_norm
    limit = common_limit(evidence.dtype, float(reference.clipping_error))
    coefficient = Coefficient("gradient", factor, limit)
    if abs(factor - 1) <= limit:
        return [], [coefficient], True
    words = factor_in_words(factor, "by their norm", *reference.plain.losses.shape[1:])
    return [Finding(abs(factor - 1), words)], [coefficient], True


def _judge_untrained(observed: Trajectory, reference: Reference, evidence: Witness) -> list[Finding]:
    """Return the faults of parameters that nothing may change: frozen ones, and those without a gradient."""
    findings = []
    columns = {name: observed.digests[:, at] for at, name in enumerate(observed.names)}
    active = reference.active.any(dim=0).tolist()
    untouched = {name for name, ever in zip(reference.plain.names, active, strict=True) if not ever}
    for name in sorted((untouched | reference.frozen.keys()) & columns.keys() & evidence.first.keys()):
        kind = "frozen parameter" if name in reference.frozen else "parameter without a gradient"
        if bool((columns[name] != evidence.first[name]).any()):
            findings.append(Finding(1.0, f"{kind} {name} was changed"))
        elif name in reference.frozen and evidence.first[name] not in reference.frozen[name].tolist():
            findings.append(Finding(1.0, f"{kind} {name} has other values than the model's"))
    return findings


def judge_copies(strays: Sequence[str], rank: int) -> list[Finding]:
    """Return whether the model of a rank computes with other weights than the engine's, rounded to its dtype.

    strays: the parameters of which it does.
    """
    if not strays:
        return []
    more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
    return [Finding(1.0, f"the model of rank {rank} has other weights than the engine's ({strays[0]}{more})")]


def judge_moments(parts: Parts, asked: torch.dtype) -> list[Finding]:
    """Return whether moments have another dtype than the one that was asked for."""
    found = {value.dtype for part in parts.values() for kind, value in part.items() if kind != "param"}
    others = sorted(str(dtype).removeprefix("torch.") for dtype in found - {asked})
    expected = str(asked).removeprefix("torch.")
    size = ONE_ROUNDING["bfloat16"]
    return [Finding(size, f"moments in {', '.join(others)} instead of {expected}")] if others else []
