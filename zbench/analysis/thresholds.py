"""Read what `zbench compare` is told on the command line: thresholds with units, what fails, shares."""

import re
from collections.abc import Sequence
from typing import cast, get_args

from zbench.analysis.settings import PAIRED_THRESHOLDS, STORED_THRESHOLDS, FailOn
from zbench.errors import UsageError
from zbench.spec.suggest import nearest

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_HIGHEST = 10.0


def parse_percent(text: str, what: str) -> float:
    """Return `3%` as 0.03; UsageError without a unit, or outside 0 to 1000 %."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        digits = text.strip().lstrip("+-")
        remedy = (
            f"; write {digits}%" if digits.replace(".", "", 1).isdigit() and text.strip()[0] != "-" else ""
        )
        raise UsageError(f"{what}: expected a percentage with its unit, such as 3%, got {text!r}{remedy}")
    share = float(match[1]) / 100
    if share > _HIGHEST:
        raise UsageError(f"{what}: expected at most {100 * _HIGHEST:g}%, got {text}")
    return share


def parse_thresholds(texts: Sequence[str], *, paired: bool = False) -> dict[str, float]:
    """Return every metric's threshold as a fraction: the defaults, changed by `METRIC=PERCENT` texts."""
    found = dict(PAIRED_THRESHOLDS if paired else STORED_THRESHOLDS)
    for text in texts:
        metric, sign, value = text.partition("=")
        metric = metric.strip()
        if not sign:
            raise UsageError(f"--threshold: expected METRIC=PERCENT, such as step_time=3%, got {text!r}")
        if metric not in found:
            known = ", ".join(found)
            hint = nearest(metric, found)
            raise UsageError(f"--threshold: unknown metric {metric!r}{hint}; expected one of {known}")
        found[metric] = parse_percent(value, f"--threshold {metric}")
    return found


def parse_fail_on(text: str) -> frozenset[FailOn]:
    """Return what fails a comparison from `regression,missing`, or nothing from `none`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return frozenset()
    known: tuple[str, ...] = get_args(FailOn)
    for word in words:
        if word not in known:
            raise UsageError(
                f"--fail-on: unknown {word!r}{nearest(word, known)}; "
                f"expected `none` or any of {','.join(known)}"
            )
    if not words:
        raise UsageError(f"--fail-on: expected `none` or any of {','.join(known)}, got nothing")
    return frozenset(cast(list[FailOn], words))


def check_alpha(alpha: float) -> float:
    """Return alpha; UsageError unless it is a probability that means something, above 0 and at most 0.2."""
    if not 0 < alpha <= 0.2:  # NaN is not, either
        raise UsageError(f"--alpha: expected a probability above 0 and at most 0.2, got {alpha:g}")
    return alpha
