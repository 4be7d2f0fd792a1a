"""What is wrong, in words: findings about update, gradient and state, from what was replayed and regressed.

Every limit is about twice the largest value of engines without known faults, which
`results/benchmarks/verdicts.md` shows.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from zbench.record.record import Coefficient
from zbench.verify.limits import (
    CERTAIN,
    DECAY_UP_TO,
    LEAST_DECAY,
    LEAST_SHARE,
    NEAR,
    UNIT_ROUNDOFF,
    WORST_UP_TO,
    WRONG_FROM,
)
from zbench.verify.regression import Regression
from zbench.verify.replay import (
    CORRECTED,
    DECAY,
    EPS,
    EPS_INSIDE,
    LENGTH,
    Adam,
    Products,
    Residual,
    within,
    without,
)

MOST_FAULTS = 3
_BESIDE = {LENGTH: DECAY, DECAY: LENGTH}

Key = TypeVar("Key", bound=Hashable)
Place = tuple[str, int]
"""A parameter, and the rank whose part of it is meant."""
Gravity = Literal["drifted", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, how large it is as a share of its term, and how it reads. by_distance: a distance at the end
    shows it, so it counts if the trial has stayed on the trajectory of the reference.
    """

    size: float
    text: str
    by_distance: bool = False

    @property
    def gravity(self) -> Gravity:
        """The verdict that it means."""
        return "drifted" if self.size < WRONG_FROM else "wrong"


def _coefficient(
    gram: Products, row: int, alike: float = 1.0, beside: Mapping[int, int] = _BESIDE
) -> tuple[float, float]:
    """Return the coefficient of a direction, fitted with the one `beside` it, and half its interval.

    It is infinite where there is nothing to see, or the two cannot be told apart.
    """
    fit, _ = Regression.of_products(gram, row, beside.get(row, 0))
    square = float(fit.square)
    return (float(fit.slope), CERTAIN * math.sqrt(alike / square)) if square > 0 else (0.0, math.inf)


def _size(products: Products) -> float:
    """Return what remains over the update, or over what another beta2 changes of second moments."""
    return math.sqrt(products[0, 0] / products[1, 1]) if products[1, 1] > 0 else 1.0


def _limits(gram: Products, coherent: Products, adam: Adam) -> dict[int, float]:
    """Return from which coefficient on a direction is a fault, besides its standard error.

    It is a share of its term, or what one rounding of all elements alike explains.
    """
    least = {
        LENGTH: LEAST_SHARE,
        DECAY: max(
            LEAST_SHARE * (adam.weight_decay or LEAST_DECAY),
            DECAY_UP_TO * UNIT_ROUNDOFF / adam.lr if adam.lr > 0 else math.inf,
        ),
    }
    return {row: max(share, _of_rounding(gram, coherent, row)) for row, share in least.items()}


def _of_rounding(gram: Products, coherent: Products, row: int) -> float:
    """Return the coefficient that one rounding of all elements gives a direction, fitted as `_coefficient`
    does.
    """
    fit, share = Regression.of_products(gram, row, _BESIDE[row])
    along = coherent[:, row] + abs(share) * coherent[:, _BESIDE[row]]
    return float(along.max()) / float(fit.square) if fit.square > 0 else math.inf


def _beyond(gram: Products, coherent: Products, adam: Adam, count: int, alike: float = 1.0) -> set[int]:
    """Return the directions that go beyond what rounding of Adam's constants and of the elements explains."""
    transform = np.eye(5)
    transform[0] = without(CORRECTED, transform[0], gram, adam.lengths_in_float32(count))
    rest = transform @ gram @ transform.T
    beyond = set()
    for row, limit in _limits(gram, coherent, adam).items():
        value, error = _coefficient(rest, row, alike)
        if abs(value) > limit + error:
            beyond.add(row)
    return beyond


def judge_update(
    residuals: Sequence[Residual], adams: Mapping[str, Adam]
) -> tuple[list[Finding], list[Coefficient]]:
    """Return the faults of the update over all ranks' residuals, and the coefficients of the whole."""
    findings = _judge_moments(residuals, adams)
    suspects = [one for one in residuals if one.worst > WORST_UP_TO or _beyond_of(one, adams)]
    if not suspects:
        suspects = _coherent(residuals, adams)
    for _ in range(MOST_FAULTS):
        if not suspects:
            break
        finding, explained = _name(suspects, residuals, adams)
        if not (findings and finding.text.startswith("updates ")):  # moments that are wrong change lengths
            findings.append(finding)
        suspects = [one for one in suspects if _place(one) not in explained]
    return findings, _coefficients(residuals, adams)


def _place(one: Residual) -> Place:
    return one.parameter, one.rank


def _beyond_of(one: Residual, adams: Mapping[str, Adam]) -> set[int]:
    return _beyond(one.gram, one.coherent, adams[one.parameter], one.count, one.alike)


def _coherent(residuals: Sequence[Residual], adams: Mapping[str, Adam]) -> list[Residual]:
    """Return the parts that only together stray: those with one Adam, of all, of a group, or of a rank."""
    of_ranks = _grouped(residuals, lambda one: one.rank)
    of_groups = _grouped(residuals, lambda one: adams[one.parameter].group)
    for some in (*of_ranks.values(), *of_groups.values(), residuals):
        of_steps = _grouped(some, lambda one: (one.step, one.count, adams[one.parameter]))
        for (_, count, adam), of_step in of_steps.items():
            if _beyond(_pooled(of_step), _rounded(of_step), adam, count):
                return [one for one in some if adams[one.parameter] == adam]
    return []


def _grouped(residuals: Sequence[Residual], key: Callable[[Residual], Key]) -> dict[Key, list[Residual]]:
    """Return the residuals by their key, in the order of its first appearance."""
    groups: dict[Key, list[Residual]] = {}
    for one in residuals:
        groups.setdefault(key(one), []).append(one)
    return groups


def _pooled(residuals: Iterable[Residual]) -> Products:
    return sum((one.gram / one.alike for one in residuals), np.zeros((5, 5)))


def _rounded(residuals: Iterable[Residual]) -> Products:
    return sum((one.coherent / one.alike for one in residuals), np.zeros((3, 5)))


def _explained(gram: Products, row: int) -> float:
    """Return how much of the residual a direction explains; eps inside the root has no factor."""
    square, along = float(gram[row, row]), float(gram[0, row])
    if row == EPS_INSIDE:
        return 2 * along - square
    return along**2 / square if square > 0 else 0.0


def _name(
    suspects: Sequence[Residual], residuals: Sequence[Residual], adams: Mapping[str, Adam]
) -> tuple[Finding, set[Place]]:
    """Return the fault that explains most of the suspects, and which of them it explains."""
    of_steps = _grouped(suspects, lambda one: one.step)
    steps = {step: _pooled(some) for step, some in of_steps.items()}
    rows = {row for one in suspects for row in _beyond_of(one, adams)}
    for some in of_steps.values():  # which only together stray
        adam, count = adams[some[0].parameter], some[0].count
        rows |= _beyond(_pooled(some), _rounded(some), adam, count) if not rows else set()
    uneven = any(one.worst > WORST_UP_TO for one in suspects)
    rows |= {EPS_INSIDE, EPS} if uneven else set()
    total = {row: sum(_explained(gram, row) for gram in steps.values()) for row in sorted(rows)}
    row = max(total, key=total.__getitem__, default=0)
    whole = sum(float(gram[0, 0]) for gram in steps.values())
    suspected = {_place(one) for one in suspects}
    if row == 0 or (total[row] < whole / 2 and uneven):
        where = where_of(suspected, {_place(one) for one in residuals} - suspected, adams)
        size = max(_size(one.gram) for one in suspects)
        return Finding(size, f"updates other than Adam's ({where})"), suspected
    faulty, sound = set(), set()
    for one in residuals:
        value, error = _coefficient(one.gram / one.alike, row)
        key = _place(one)
        expected = _coefficient(steps[one.step], row)[0] if one.step in steps else None
        if key in suspected and abs(value) > error:
            faulty.add(key)
        elif expected is not None and abs(value - expected) > error + abs(expected) * NEAR:
            sound.add(key)
    faulty = faulty or suspected
    where = where_of(faulty, sound - faulty, adams)
    size, text = _words(row, steps, suspects, adams)
    return Finding(size, text.format(where=where)), suspected - (sound - faulty)


def _words(
    row: int, steps: Mapping[int, Products], suspects: Sequence[Residual], adams: Mapping[str, Adam]
) -> tuple[float, str]:
    """Return the size of a fault as a share of its term, and what it reads like."""
    adam = adams[suspects[0].parameter]
    strongest = max(steps, key=lambda s: float(steps[s][row, row]))
    share = _coefficient(steps[strongest], row)[0]
    if row == DECAY:
        share /= adam.weight_decay or LEAST_DECAY
        if adam.weight_decay == 0:
            return abs(share), "weight decay that was not asked for on {where}"
        if abs(share + 1) < NEAR:
            return 1.0, "no weight decay on {where}"
        strength = "strong" if share > 0 else "weak"
        return abs(share), f"weight decay {percent(share)} too {strength} ({{where}})"
    if row in (EPS_INSIDE, EPS):
        text = "eps inside the root" if row == EPS_INSIDE else f"eps {times(max(0.0, 1 + share))}"
        return max(_size(one.gram) for one in suspects), text + " ({where})"
    lengths = {step: _coefficient(gram, LENGTH)[0] for step, gram in steps.items()}
    corrections = {one.step: adam.corrections(one.count) for one in suspects}
    bare = {step: first / math.sqrt(second) - 1 for step, (first, second) in corrections.items()}
    if adam.bias_correction and all(abs(lengths[s] - bare[s]) < NEAR * abs(bare[s]) for s in steps):
        return max(map(abs, lengths.values())), "no bias correction ({where})"
    after = -adam.lr * adam.weight_decay
    if adam.decoupled and after and all(abs(length - after) < NEAR * -after for length in lengths.values()):
        return -after, "weight decay after the update ({where})"
    return abs(share), f"updates {percent(share)} too {'long' if share > 0 else 'short'} ({{where}})"


def _judge_moments(residuals: Sequence[Residual], adams: Mapping[str, Adam]) -> list[Finding]:
    bad = [one for one in residuals if one.worst_moment > WORST_UP_TO or _moment_strays(one, adams)]
    if not bad:
        return []
    suspected = {_place(one) for one in bad}
    where = where_of(suspected, {_place(one) for one in residuals} - suspected, adams)
    gram = sum((one.moments for one in bad), np.zeros((2, 2)))
    share = float(gram[0, 1] / gram[1, 1])
    adam = adams[bad[0].parameter]
    size = max(_size(one.moments) for one in bad)
    if float(gram[0, 1]) ** 2 > float(gram[0, 0] * gram[1, 1]) / 2:
        beta2 = adam.beta2 - share * (1 - adam.beta2)
        if 0 <= beta2 < 1:
            return [Finding(abs(share), f"beta2 {beta2:.4g} instead of {adam.beta2:g} ({where})")]
    return [Finding(size, f"second moments that are not the gradients' ({where})")]


def _moment_strays(one: Residual, adams: Mapping[str, Adam]) -> bool:
    share, error = _coefficient(one.moments, 1, one.alike, {})
    return abs(share - within(share, (adams[one.parameter].beta2_in_float32,))) > LEAST_SHARE + error


def _coefficients(residuals: Sequence[Residual], adams: Mapping[str, Adam]) -> list[Coefficient]:
    """Return the coefficients of all parameters and replayed steps together, where they can be seen."""
    if not residuals:
        return []
    gram = _pooled(residuals)
    moments = sum((one.moments for one in residuals), np.zeros((2, 2)))
    decay = max(adam.weight_decay for adam in adams.values()) or LEAST_DECAY
    terms = {
        "update length": (*_coefficient(gram, LENGTH), 1.0),
        "weight decay": (*_coefficient(gram, DECAY), decay),
        "1 - beta2": (*_coefficient(moments, 1, beside={}), 1.0),
    }
    return [
        Coefficient(term, 1 + value / unit, error / unit)
        for term, (value, error, unit) in terms.items()
        if math.isfinite(error)
    ]


def where_of(faulty: Collection[Place], sound: Collection[Place], adams: Mapping[str, Adam]) -> str:
    """Return which parameters, or whose part of them; those in neither could not be told."""
    if not sound:
        return "all parameters"
    names, ranks = {name for name, _ in faulty}, {rank for _, rank in faulty}
    sound_names, sound_ranks = {name for name, _ in sound}, {rank for _, rank in sound}
    whose = f"rank {', '.join(map(str, sorted(ranks)))}'s"
    if names & sound_names and not ranks & sound_ranks:
        return f"{whose} part"
    suffix = f" of {whose} part" if names & sound_names else ""
    groups = {adams[name].group for name in names if name in adams}
    pattern = next(iter(groups)) if len(groups) == 1 else None
    if pattern is not None and not any(adams[name].group == pattern for name in sound_names):
        return pattern + suffix
    endings = {name.rpartition(".")[2] for name in names}
    ending = next(iter(endings))
    if len(endings) == 1 and len(names) > 1 and not any(n.rpartition(".")[2] == ending for n in sound_names):
        return f"*.{ending}{suffix}"
    first = min(names)
    return first + suffix if len(names) == 1 else f"{first} and {len(names) - 1} more{suffix}"


def percent(share: float) -> str:
    return f"{abs(share):.1%}".replace("%", " %") if abs(share) >= 5e-4 else f"{abs(share) * 100:.2g} %"


def times(factor: float) -> str:
    return f"{factor:.1f} x" if 0.1 <= abs(factor) < 1000 else f"{factor:.2g} x"
