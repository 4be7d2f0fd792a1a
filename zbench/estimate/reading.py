"""The estimate of one trial, or the reason why there is none: operator or key, and remedy."""

import dataclasses
import os
import re
from collections import Counter
from pathlib import Path

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from zbench.errors import UsageError, ZbenchError
from zbench.estimate.caching import RELEASE, Change, is_expandable, reserved
from zbench.estimate.result import Estimate, HeldAllocation, NotSimulated, Reserved, SimulationOutcome
from zbench.estimate.simulate import Step, simulate
from zbench.spec.trial import TrialSpec

_NAMED = 20  # allocations at the peak
_NO_FAKE = re.compile(r"no fake impl|register_fake|Attempted to call .* fake|no meta|Meta tensors", re.I)
_OPERATOR = re.compile(r"\b([a-z_][\w]*::[\w.]+|aten\.[\w.]+)")


def answer(trial: TrialSpec, base_dir: Path) -> SimulationOutcome:
    """Return the estimate of one rank of a trial, or why it cannot be simulated."""
    try:
        return estimate(trial, base_dir)
    except Exception as error:
        return NotSimulated(explained(error))


def estimate(trial: TrialSpec, base_dir: Path) -> Estimate:
    """Return the estimate of one rank of a trial. UsageError if `check_simulated` refuses the trial."""
    check_simulated(trial)
    step = simulate(trial, base_dir)
    ledger = step.ledger
    moment = ledger.peak_moment[False]
    return Estimate(
        peak_device_bytes=ledger.peak[False],
        peak_host_bytes=ledger.peak[True],
        build_device_bytes=step.build_bytes[False],
        build_host_bytes=step.build_bytes[True],
        device=ledger.by_category(moment, host=False),
        host=ledger.by_category(ledger.peak_moment[True], host=True),
        phase=ledger.peak_phase[False],
        alive=_alive(step, moment),
        traffic={kind: dataclasses.asdict(one) for kind, one in step.traffic.items()}
        or step.counts.collectives,
        flops=step.flops,
        work=step.work,
        counts=step.counts,
        parameters=step.parameters,
        reserved=_reserved(step, trial) if trial.run.device == "cuda" else None,
    )


def _reserved(step: Step, trial: TrialSpec) -> Reserved:
    """Return what torch's caching allocator reserves on a card for the allocations of a step."""
    ledger = step.ledger
    changes: list[Change] = [(moment, RELEASE, 0, 0) for moment in ledger.releases]
    for key, each in enumerate(ledger.allocations):
        if each.nbytes and not each.host:
            changes.append((each.born, key, each.nbytes, each.stream))
            if each.died <= ledger.moment:
                changes.append((each.died, key, 0, 0))
    expandable = is_expandable(os.environ)
    reservation = reserved(sorted(changes), step.built, step.begin, ledger.peak[False], expandable=expandable)
    return dataclasses.replace(reservation, communicators=_communicators(trial))


def _communicators(trial: TrialSpec) -> int:
    """Return how many NCCL communicators a rank has; the engine gathers over others than it reduces over."""
    size = trial.run.world_size
    groups = 3 if 1 < (trial.engine.shard_group_size or size) < size else 1
    return 0 if size == 1 else groups * (2 if trial.engine.engine == "builtin" else 1)


def _alive(step: Step, moment: int) -> list[HeldAllocation]:
    """Return the largest allocations live at one moment, grouped by category, place, shape and dtype."""
    count: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    total: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    for a in step.ledger.allocations:
        if a.nbytes and not a.host and a.alive(moment):
            key = (step.ledger.category(a), _short(a.where), a.shape, str(a.dtype).removeprefix("torch."))
            count[key] += 1
            total[key] += a.nbytes
    return [HeldAllocation(nbytes, count[key], *key) for key, nbytes in total.most_common(_NAMED)]


def _short(where: str) -> str:
    """Return `file:line` with the last two folders only."""
    return "/".join(where.split("/")[-3:])


def check_simulated(trial: TrialSpec) -> None:
    """Raise UsageError for a command, an `engine_python` or inductor, which cannot be simulated."""
    engine = trial.engine
    if trial.workload.command is not None:
        raise UsageError("workload.command: your own script is not simulated; measure it with `zbench run`")
    if engine.engine_python is not None and engine.engine != "deepspeed":
        raise UsageError("engine.engine_python: another environment's engine is not simulated; leave it out")
    if engine.compile == "inductor":
        raise UsageError(
            "engine.compile: inductor's kernels are not simulated; compile=aot_eager shows the same graph's"
            " memory without them"
        )


def explained(error: BaseException) -> str:
    """Return why a simulation failed, with the remedy if it is known."""
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
        operator = _OPERATOR.search(text)
        name = getattr(error, "func", None) or (operator[1] if operator else text.splitlines()[0])
        return (
            f"the operator {name} has no fake kernel; add one with torch.library.register_fake, or measure"
            " with `zbench run`"
        )
    return f"{type(error).__name__}: {text.splitlines()[0]}"
