"""The limits of all verdicts, in one table: which error of which term is a fault, by the model's dtype.

`docs/verdicts.md` prints the table. A limit is changed only after both samples ran: healthy engines on the
zoo of models, and faults (`python -m tests.verify.campaign`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

ONE_ROUNDING: Mapping[str, float] = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half of the distance of 1 from the next larger value: one rounding, as a share."""
UNIT_ROUNDOFF = ONE_ROUNDING["float32"]
ALL_DTYPES = "all"


@dataclass(frozen=True, slots=True)
class Limit:
    """A row of the table. term: of a training. source: of the error that a healthy engine has there."""

    term: str
    dtype: str
    source: str
    value: float


TABLE: list[Limit] = []


def _limit(term: str, value: float, source: str) -> float:
    TABLE.append(Limit(term, ALL_DTYPES, source, value))
    return value


def _by_dtype(term: str, values: Mapping[str, float], source: str) -> Mapping[str, float]:
    TABLE.extend(Limit(term, dtype, source, value) for dtype, value in values.items())
    return values


# The verdict by distance.
EQUIVALENT_UP_TO = _limit("error ratio of an equivalent run", 4.0, "order of rounding")
DRIFTED_UP_TO = _limit("error ratio of a drifted run; beyond: wrong", 100.0, "faults that only shift a run")
LEAST_WAY = _limit("distance, as a share of the way travelled", 1e-2, "jumps of ReLUs and maxima")
LEAST_MOMENT = _limit("first moment, as a share of its largest size", 0.1, "jumps of ReLUs and maxima")
LEAST_SHARE = _limit("any difference, as a share of its term", 1e-4, "size of the smallest fault")
WAY_TIMES_CONSTANTS = _limit("distance, in errors of Adam's constants", 4.0, "bias corrections in float32")
UNRESOLVED_FROM = _limit("error of a gradient that rounding decides, as a share", 0.5, "cancelled gradients")
GROSS_SHARE = _limit(
    "distance without a float64 run, as a share of the way; of a buffer's size", 0.25, "chaos"
)
BUFFERS_UP_TO = _limit("error ratio of a buffer", 10.0, "order of rounding, few elements")
STILL_STEPS = _limit("steps in which a buffer does not change, though the reference's does", 2, "rounding")
STILL_WITHIN = _limit("change of a buffer that rounding can hide, in roundings", 8.0, "rounding")
POOLED_ELEMENTS = _limit("elements of the median tensor beside a tensor's own", 64, "luck of few elements")
SINGLE_ELEMENTS = _limit("largest elements that are left out of a mean", 2, "one element without a gradient")
WRONG_FROM = _limit("fault that is wrong, as a share of its term", 0.1, "size of a fault")

# The first gradient, and the gradient and the update of every step.
ALONE_UP_TO = _by_dtype(
    "factor of one parameter's gradient",
    {"float32": 2e-4, "bfloat16": 2.0**-8, "float16": 2.0**-11},
    "coherent rounding of one tensor",
)
ALL_UP_TO = _by_dtype(
    "factor of all gradients",
    {"float32": 2e-4, "bfloat16": 2.0**-7, "float16": 2.0**-10},
    "norm and factor of clipping in the model's dtype",
)
UPDATES_UP_TO = _by_dtype(
    "factor of all updates",
    {"float32": LEAST_SHARE, "bfloat16": 1e-3, "float16": 1e-3},
    "coherent rounding",
)
REST_UP_TO = _limit("first gradient across the true one, in the reference's own errors", 8.0, "rounding")
ALL_CERTAIN = _limit("factor of all, in standard errors", 6.0, "rounding across the true gradient")
ALONE_CERTAIN = _limit("factor of one parameter, in standard errors", 9.0, "rounding, many parameters")
OWN_CERTAIN = _limit("factor of the reference itself, in standard errors", 2.0, "rounding of the reference")
OF_CONSTANTS = _limit("factor of a gradient, growing with its errors", 3e-5, "Adam's constants in float32")
STEP_TIMES_CONSTANTS = _limit(
    "factor of a gradient, in errors of Adam's constants", 2.5, "the same, beta2 near 1"
)
DIVERGED = _limit("factor, in the reference's errors at the trial's distance", 5.0, "the trajectory")
FOLDED = _limit("factor of the same, per share by which an update changes all weights", 10.0, "long updates")
LOSSES_UP_TO = _limit("loss, in the reference's errors at the trial's distance", 16.0, "the trajectory")
LOSS_ROUNDINGS = _limit("loss, in roundings of its size", 4.0, "rounding")
LEAST_GROUP = _limit("squared share of a step that an eighth must have", 1e-3, "rounding")
STEP_REST_UP_TO = _limit("step across the true one, in the reference's own errors", 3.0, "rounding")
GROUP_REST_UP_TO = _limit("the same of an eighth of a parameter", 8.0, "rounding of few sums")
TYPICAL_REST_UP_TO = _by_dtype(
    "the same of the median parameter",
    {"float32": math.inf, "bfloat16": 1.5, "float16": 1.5},
    "rounding, kinks of ReLUs and maxima",
)
TYPICAL_OF = _limit("parameters whose median is the typical one", 8, "few parameters")
LARGE_FROM = _limit("elements of a parameter whose eighths are judged across", 2048, "kinks of one unit")
LEAST_REST = _by_dtype(
    "step across the true one, as a share of the step",
    {"float32": 0.25, "bfloat16": 0.0, "float16": 0.0},
    "kinks of ReLUs and maxima",
)
TURNED_ROUND = _limit("elements of an update that turn round", 4, "gradients below rounding")
KINKS_FROM = _by_dtype(
    "the same of other parameters, from which a kink may explain it",
    {"float32": 3.0, "bfloat16": 3.0, "float16": 3.0},
    "kinks of ReLUs and maxima",
)
FIRST_TIMES = _limit("the same of a part, in its limits, in a single step", 2.0, "kinks, luck of few sums")
FIRST_TIMES_FROM = _by_dtype(
    "distance of a trial, in the reference's, from which this counts",
    {"float32": 100.0, "bfloat16": 1.0, "float16": 1.0},
    "the trajectory",
)
EXPLAINED_STEPS = _limit("steps in a row in which a kink may explain the same part", 2, "kinks")
JUMPS_UP_TO = _limit("the same of a gradient, from which it has jumped", 100.0, "kinks of ReLUs and maxima")
KINKS_UP_TO = _limit("jump of a gradient that a kink explains", 0.5, "kinks of ReLUs and maxima")
ABOVE_KINKS = _limit("jump of the gradients above a kink, as a share of those below", 0.01, "rounding")
REACHED_BY_KINKS = _limit("share of the parameters below a kink whose gradients jump", 0.9, "rounding")
DISTANCE_COVERS = _limit("share of all updates that shows in the distance of a covered step", 0.5, "rounding")
COVERED_UP_TO = _limit("share by which rounding may change a step that is covered", 0.25, "the trajectory")
TELLS_UP_TO = _limit("limit above which nothing is said", 0.5, "the trajectory")
CHAOTIC_BELOW = _limit("share of usable gradients below which nothing is said", 0.75, "chaos")
LEAST_SUMS = _limit("signed sums of a parameter that is judged", 16, "few elements")
LEAST_STEPS = _limit("steps that are judged together", 3, "few steps")

# The replayed update.
WORST_UP_TO = _limit("residual of one element, in its roundings", 3.0, "rounding")
CERTAIN = _limit("coefficient of a fault, in standard errors", 4.0, "rounding of many elements")
DECAY_UP_TO = _limit("lr x weight decay, in roundings of a weight", 0.02, "weight decay in float32")
LEAST_DECAY = _limit("weight decay that was not asked for, per size of a fault", 0.01, "rounding of weights")
SEPARABLE_FROM = _limit("share that tells two directions apart", 1e-6, "parallel directions")
NEAR = _limit("relative difference of two factors that are one", 0.15, "rounding of a factor")

# Training scripts, and the reference itself.
ROUGH_TIMES = 64
TABLE.append(Limit("rounding errors of a script's rougher run, in the finer run's", ALL_DTYPES, "jumps", 64))
JUMPS_FROM = _limit("distance of the rougher run, in proportion, from which a script jumps", 2.0, "jumps")
AUTOCAST_FROM = _limit("error ratio from which a script under autocast is named", 10.0, "activations")
REPEATED_WITHIN = _by_dtype(
    "two first steps on a device",
    {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3},
    "order of atomic additions",
)


def markdown() -> str:
    """Return the table as Markdown: a row for each limit."""
    rows = [f"| {one.term} | {one.dtype} | {one.source} | {one.value:.3g} |" for one in TABLE]
    return "\n".join(["| term | dtype | source of error | limit |", "|---|---|---|---|", *rows])
