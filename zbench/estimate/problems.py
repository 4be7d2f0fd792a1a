"""What cannot be simulated, in the user's words: the operator or key, and the remedy."""

import re

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from zbench.errors import UsageError, ZbenchError
from zbench.spec.trial import TrialSpec

_NO_FAKE = re.compile(r"no fake impl|register_fake|Attempted to call .* fake|no meta|Meta tensors", re.I)
_OPERATOR = re.compile(r"\b([a-z_][\w]*::[\w.]+|aten\.[\w.]+)")


def check_simulated(trial: TrialSpec) -> None:
    """Raise UsageError for a trial whose memory depends on more than its specification."""
    engine = trial.engine
    if trial.workload.command is not None:
        raise UsageError("workload.command: your own script is not simulated; measure it with `zbench run`")
    if engine.engine_python is not None:
        raise UsageError(
            "engine.engine_python: another environment's engine is not simulated; leave the key out to"
            " simulate this environment's"
        )
    if engine.compile == "inductor":
        raise UsageError(
            "engine.compile: inductor's kernels are not simulated; compile=aot_eager shows the same graph's"
            " memory without them"
        )


def explained(error: BaseException) -> str:
    """Return why a simulation failed."""
    if isinstance(error, ZbenchError):
        return str(error)
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"{error.func} returns a tensor whose shape depends on data; use a form with a fixed shape"
            " (a mask, a padded length), or measure with `zbench run`"
        )
    if isinstance(error, DataDependentOutputException):
        return (
            f"{error.func} reads a value that is computed from weights or activations; keep the model's"
            " control flow on shapes, or measure with `zbench run`"
        )
    text = str(error) or type(error).__name__
    if isinstance(error, UnsupportedOperatorException) or _NO_FAKE.search(text):
        found = _OPERATOR.search(text)
        name = getattr(error, "func", None) or (found[1] if found else text.splitlines()[0])
        return (
            f"the operator {name} has no fake kernel; add one with torch.library.register_fake, or measure"
            " with `zbench run`"
        )
    return f"{type(error).__name__}: {text.splitlines()[0]}"
