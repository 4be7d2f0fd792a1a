"""What a script's verdict says of the row that its weights are compared with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zbench.verify.verdict import Judgement

_FAULTS = ("drifted", "wrong")
_LONGEST = 40  # characters of two values in a message


def told_against(judgement: Judgement, against: Mapping[str, Any]) -> Judgement:
    """Return a judgement whose diagnosis names the row that the weights differ from.

    against: key -> value of that row, of the keys that differ. Which of the two rows is wrong is not known.
    """
    correctness = judgement.correctness
    if not against or correctness.verdict not in _FAULTS:
        return judgement
    row = " ".join(f"{key}={value}" for key, value in against.items())
    moves = f": {correctness.diagnosis}" if correctness.diagnosis else ""
    diagnosis = f"differs from the row with {row}{moves}"
    return replace(judgement, correctness=replace(correctness, diagnosis=diagnosis))


def told_apart(
    judgement: Judgement, apart: Mapping[str, tuple[Any, Any]], other: Judgement, why: str = ""
) -> Judgement:
    """Return a judgement that tells how far a row is from the base row, along axes that nobody declared.

    apart: these axes -> the values of the row and of the base row. other: the comparison with the base row.
    why: what explains a difference, instead of the key that forbids it. The verdict stays.
    """
    axes, found = ", ".join(apart), other.correctness
    if found.verdict in ("identical", "equivalent"):
        return judgement
    if found.verdict == "unchecked":
        told = f"rows along {axes} are not compared: {other.warnings[0].removeprefix('not verified: ')}"
        return replace(judgement, warnings=[*judgement.warnings, told])
    moves = f" ({found.diagnosis})" if found.diagnosis else ""
    values = [" against ".join(str(value) or "no value" for value in pair) for pair in apart.values()]
    short = ", ".join([value for value in values if len(value) <= _LONGEST] or ["another row"])
    why = why or f"if this must not change the training: `verify.same_training: [{axes}]`"
    ratio = found.error_ratio or float("inf")
    told = f"rows differ along {axes}: {short}, error ratio {ratio:,.0f}{moves}; {why}"
    correctness = replace(judgement.correctness, differs_along=list(apart))
    return replace(judgement, correctness=correctness, warnings=[*judgement.warnings, told])
