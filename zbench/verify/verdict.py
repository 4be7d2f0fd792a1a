"""The verdict: is this the same training as plain PyTorch's? Pure functions of what both runs observed.

`identical`: every parameter had the reference's bits after every step; on a GPU after each of the first,
deterministic ones, if no later step is worse than `equivalent`. Otherwise the distance from a float64 run of
the same training is compared with the reference's own. An `error_ratio` up to 4 is `equivalent`: the order of
rounding differs, no more. Above 4 it is `drifted`; above 100, or where a value is not finite, `wrong`.

The error ratio is the largest of three: over all parameters, of the median parameter, and how far the worst
parameter stands out from the median one. `distance` says how each is taken, and why not by L2. The same is
done with the first moments where the engine shows them, and the larger counts: Adam divides a gradient by its
own size, so a gradient scaled by a constant moves the weights almost as before and shows only in its moments.
A difference has a size: below 1e-4 of the way that a parameter travelled, or below one rounding a step of all
elements alike, it does not count. At a beta2 near 1 bias corrections in float32 decide more than 1e-4, and
take its place. It grows with what the trajectory makes of rounding in the parameter.
Where gradients are clipped, an error as large as that of torch's own norm is healthy. `clip_grad_norm_` adds
up in float32, and on a CPU that is 4e-5 off for an embedding of 4 million elements.

In float32 a dropped micro-batch or an update applied twice is thousands of times beyond the limit. In
bfloat16 the yardstick is bfloat16's own rounding, and the ratio does not see what moves weights by less than
about a hundredth of an update; `evidence` and `steps` do. docs/verdicts.md says how often honest runs are
accused.

Without the float64 run (`verify: {mode: reference}`) there is no yardstick for a difference. Then a run that
ended further from the reference than a quarter of the way the reference travelled is `drifted`. Anything
nearer but not identical stays `unchecked`, with its differences reported. A reference that is itself not
finite judges nobody. Nor does one call anything `equivalent` whose own distance from the float64 run is a
quarter of what it travelled. Four times that is the whole way, which a run of other training is not beyond.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from zbench.record.record import Correctness, VerdictName
from zbench.verify.coverage import covered_by_distance
from zbench.verify.distance import TINY, Difference, Distances, Errors, Healthy, difference_of, errors_of
from zbench.verify.evidence import Examined, Witness, examine
from zbench.verify.limits import (
    DRIFTED_UP_TO,
    EQUIVALENT_UP_TO,
    GROSS_SHARE,
    LEAST_MOMENT,
    LEAST_SHARE,
    LEAST_WAY,
)
from zbench.verify.noise import can_be_compared, least_shares, unresolved
from zbench.verify.replay import Adam
from zbench.verify.trajectory import Reference, Trajectory

_MOST_NAMED = 3
_NO_FLOAT64_RUN = (
    "not the reference's bits, and no float64 run tells whether the difference matters:"
    " take verify.mode full, and a model that float64 can run"
)
_NOT_FINITE = "the reference itself is not finite: take a smaller learning rate, or float32"
_REMEDY = "take fewer steps, a smaller learning rate, or float32"
_GRAVITY: Sequence[VerdictName] = ("wrong", "drifted", "unchecked", "equivalent", "identical")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and what the user should know about how it came about."""

    correctness: Correctness
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FinalState:
    """How far a trial's final weights and first moments are from the reference's, in the order of its names.

    moments: None if the engine does not show them.
    """

    weights: Distances
    moments: Distances | None = None


def judge(
    observed: Trajectory, final: FinalState, reference: Reference, evidence: Witness | None = None
) -> Judgement:
    """Return the verdict on a run of the same steps as the reference's; ValueError if parameters are
    missing. evidence: other observations of the trial; without it the final state alone is judged.
    """
    _require_all(observed, reference.plain)
    is_finite = not bool((final.weights.not_finite + final.weights.plain_not_finite).any())
    if evidence is None or not is_finite:
        adams = {} if evidence is None else evidence.adams
        return _by_distance(observed, final, reference, adams, has_findings=False)
    examined = examine(observed, reference, evidence)
    findings, unchecked = examined.findings, examined.unchecked
    judgement = _by_distance(observed, final, reference, evidence.adams, has_findings=bool(findings))
    judgement = _within_coverage(judgement, reference, examined, evidence.adams)
    was = judgement.correctness
    if was.verdict == "identical":
        unchecked = {}
    verdict = min([was.verdict, *(finding.gravity for finding in findings)], key=_GRAVITY.index)
    diagnosis = "; ".join(dict.fromkeys(finding.text for finding in findings[:_MOST_NAMED]))
    if not diagnosis and verdict in ("drifted", "wrong"):
        diagnosis = f"parameters differ from step {was.first_differing_step} on"
    correctness = replace(
        was,
        verdict=verdict,
        diagnosis=diagnosis or None,
        not_checked=list(unchecked),
        coefficients=examined.coefficients,
    )
    warnings = [f"{part} not checked: {why}" for part, why in unchecked.items()]
    return Judgement(correctness, [*judgement.warnings, *warnings])


def _within_coverage(
    judgement: Judgement, reference: Reference, examined: Examined, adams: Mapping[str, Adam]
) -> Judgement:
    """Return the verdict on the final state with the number of steps that it covers; `unchecked` if it covers
    less than half of a run that is not identical.

    After the trial has become another trajectory of the same training, the distance of the final weights says
    nothing.
    """
    was, steps = judgement.correctness, len(reference.active)
    if was.verdict == "identical":
        return replace(judgement, correctness=replace(was, checked_steps=steps, steps=steps))
    judged = examined.steps
    covered = judged.covered
    if not can_be_compared(reference.plain.sketches, reference.true_sketches):
        return judgement
    if judged.left == 0 or was.verdict == "equivalent":
        covered = max(covered, covered_by_distance(reference, adams))
    was = replace(was, checked_steps=covered, steps=steps)
    is_near = was.error_ratio is not None and was.error_ratio <= EQUIVALENT_UP_TO
    if was.verdict == "unchecked" and is_near and 2 * judged.covered >= steps:
        # the distance decides nothing, and need not: the steps are judged
        was = replace(was, verdict="equivalent", checked_steps=judged.covered)
        return Judgement(was, judgement.warnings[:-1])
    if was.verdict not in ("equivalent", "drifted", "wrong") or was.max_abs_diff is None:
        return replace(judgement, correctness=was)
    if judged.left and was.verdict != "equivalent":
        was = replace(was, verdict="equivalent")
    by_distance_alone = was.verdict == "drifted" and not examined.findings
    if by_distance_alone:  # if rounding decides the steps, it decides a part of the distance, too
        covered = judged.covered
    if (was.verdict == "equivalent" or by_distance_alone) and 2 * covered < steps:
        why = "the trial took another way at a kink" if judged.left else "rounding decides later steps"
        warning = f"{covered} of {steps} steps can be judged, {why}: {_REMEDY}"
        return Judgement(replace(was, verdict="unchecked"), [*judgement.warnings, warning])
    return replace(judgement, correctness=was)


def _require_all(observed: Trajectory, plain: Trajectory) -> None:
    missing = [name for name in plain.names if name not in observed.names]
    if missing:
        raise ValueError(
            f"the engine's full_parameters() lacks {len(missing)} trained parameters: {missing[0]}, ..."
        )


def _by_distance(
    observed: Trajectory,
    final: FinalState,
    reference: Reference,
    adams: Mapping[str, Adam],
    *,
    has_findings: bool,
) -> Judgement:
    """Return the verdict on the final state. has_findings: a regression or a replay has named a fault, so
    the error ratio shows how far the fault led.
    """
    plain = reference.plain
    differing = _differing(observed, plain)
    losses = _largest_difference(observed.losses, plain.losses)
    norms = _largest_difference(observed.grad_norms, plain.grad_norms)
    if not bool(differing.any()):
        ratio = 1.0 if reference.truth else None
        return Judgement(Correctness("identical", ratio, 0.0, 0, None, None, losses, norms))
    first = int(differing.any(dim=1).nonzero()[0])
    suspects = {name for name, bad in zip(plain.names, differing[first].tolist(), strict=True) if bad}
    difference = difference_of(final.weights, plain.names)
    limits = (LEAST_SHARE, LEAST_SHARE) if has_findings else (LEAST_WAY, LEAST_MOMENT)
    shares = [least_shares(reference, adams, limit) for limit in limits]
    verdict, ratio, worst, warnings = _weigh(observed, final, reference, difference, suspects, shares)
    is_finite = not bool(final.weights.plain_not_finite.any())
    agreed = first >= reference.deterministic_steps > 0 and is_finite
    if agreed and verdict in ("equivalent", "unchecked"):
        verdict, warnings = "identical", []
    measured = (ratio, difference.max_abs, difference.max_ulp, worst)
    if observed.skipped != plain.skipped:
        skipped = [list(run.skipped) for run in (observed, plain)]
        warnings.append(f"skipped steps {skipped[0]} for a loss scale, the reference {skipped[1]}")
    return Judgement(Correctness(verdict, *measured, first + 1, losses, norms), warnings)


def worse(judgements: Sequence[Judgement]) -> Judgement:
    """Return the gravest of several ranks' judgements: `wrong` before `drifted` before `unchecked`."""
    return min(judgements, key=lambda judgement: _GRAVITY.index(judgement.correctness.verdict))


def _weigh(
    observed: Trajectory,
    final: FinalState,
    reference: Reference,
    difference: Difference,
    suspects: set[str],
    shares: Sequence[Mapping[str, float]],
) -> tuple[VerdictName, float | None, str | None, list[str]]:
    """Return verdict, error ratio, worst parameter and warnings of a run whose bits differ.

    shares: from which on an error counts: of the distance that each parameter travelled, and of the largest
    size of its first moments.
    """
    plain = reference.plain
    if bool(final.weights.plain_not_finite.any()):
        return "unchecked", None, None, [_NOT_FINITE]
    if difference.not_finite is not None:
        return "wrong", None, difference.not_finite, []
    if bool((_finite_steps(plain) & ~_finite_steps(observed)).any()):
        return "wrong", None, difference.farthest, ["the loss is not finite where the reference's is"]
    travelled = max(float(reference.travelled.norm()), TINY)
    if not reference.truth:
        share = difference.distance / travelled
        if share > GROSS_SHARE:
            warning = f"it ended {share:.0%} of the way that the reference travelled away from it"
            return "drifted", None, difference.farthest, [warning]
        return "unchecked", None, difference.farthest, [_NO_FLOAT64_RUN]
    steps = len(plain.digests)
    moved = dict(zip(plain.names, reference.travelled.tolist(), strict=True))
    sizes = {n: moved[n] / math.sqrt(max(1, reference.elements(n))) for n in plain.names}
    healthy = Healthy(sizes, shares[0], steps)
    noise = unresolved(reference)
    resolved = [at for at, name in enumerate(plain.names) if name not in noise]
    if not resolved:
        warning = "rounding decides every gradient: train in float32, or give the loss a gradient"
        return "unchecked", None, difference.farthest, [warning]
    names = [plain.names[at] for at in resolved]
    weights = final.weights.of(resolved)
    errors = [errors_of(weights, names, healthy)]
    if final.moments is not None and reference.true_moments:
        of_moments = dict(zip(plain.names, reference.moment_sizes.tolist(), strict=True))
        errors.append(errors_of(final.moments.of(resolved), names, Healthy(of_moments, shares[1], steps)))
    ratio = max(e.ratio for e in errors)
    verdict = name_of(ratio)
    worst = _worst(errors, suspects)
    way = math.sqrt(math.fsum(moved[name] ** 2 for name in names))
    share = math.sqrt(math.fsum(weights.own_squares.tolist())) / max(way, TINY)
    near = difference.distance <= 2 * travelled  # two runs that chaos took apart are 1.4 ways from each other
    undecided = verdict == "equivalent" or (verdict == "drifted" and near)
    if undecided and share * EQUIVALENT_UP_TO >= 1:
        warning = (
            f"the reference itself ended {share:.0%} of the way that it travelled away from its float64 run,"
            " so even another training would seem equivalent: train fewer steps, or in float32"
        )
        return "unchecked", ratio, worst, [warning]
    return verdict, ratio, worst, []


def name_of(ratio: float) -> VerdictName:
    """Return the verdict that an error ratio means."""
    if ratio <= EQUIVALENT_UP_TO:
        return "equivalent"
    return "drifted" if ratio <= DRIFTED_UP_TO else "wrong"


def _worst(errors: Sequence[Errors], suspects: set[str]) -> str:
    """Return the parameter that stands out most: among those that differed first, if one of them is beyond
    4."""
    ratios: dict[str, float] = {}
    for name, ratio in (item for e in errors for item in e.each.items()):
        ratios[name] = max(ratio, ratios.get(name, ratio))
    first = [name for name in suspects & ratios.keys() if name_of(ratios[name]) != "equivalent"]
    return max(first or ratios, key=lambda name: ratios[name])


def _finite_steps(run: Trajectory) -> Tensor:
    """Return [S] bool: in which steps every loss was finite."""
    return run.losses.isfinite().flatten(1).all(dim=1)


def _differing(observed: Trajectory, plain: Trajectory) -> Tensor:
    """Return [S, P] bool: which of the reference's parameters had other bits after which step."""
    column = {name: place for place, name in enumerate(observed.names)}
    digests = observed.digests[:, [column[name] for name in plain.names]]
    return digests != plain.digests


def _largest_difference(observed: Tensor, plain: Tensor) -> float | None:
    """Return the largest absolute difference over the places where both are finite; None where there is
    none."""
    if observed.shape != plain.shape:
        return None
    differences = (observed - plain).abs()
    finite = differences[differences.isfinite()]
    return float(finite.max()) if finite.numel() else None
