"""Record: the result of one repeat of one trial. One JSON line in `trials.jsonl`."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from zbench.spec.metrics import VerdictName as VerdictName  # part of this module's interface
from zbench.units import format_seconds

SCHEMA_VERSION = 1

Outcome = Literal["ok", "oom", "timeout", "crashed", "invalid"]
_STALLING = 1.2
"""Mean over median step above which a warning names the steps that stall."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial did not finish; `log` is a path relative to the run directory."""

    kind: str
    message: str
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of every timed step (after warm-up; in a heat without the first of each turn), and the figures
    computed from them.

    Rates are the work over the time of all timed steps, so a step that stalls counts with all its time.
    tokens_per_s, samples_per_s: None if the workload does not define a token, or a sample.
    mfu: the fraction of the devices' peak FLOP/s, as the maker states it; None if that is not known.
    of_compute: the time of plain PyTorch without communication over this one's, in the same heat.
    cpu_seconds: CPU time of all ranks in each timed step; empty if it is not known.
    """

    step_seconds: list[float]
    median_step_s: float
    tokens_per_s: float | None
    samples_per_s: float | None
    tflops: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    mfu: float | None = None
    of_compute: float | None = None
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def mean_step_s(self) -> float:
        """Return the mean time of a step, which rankings, comparisons and rates are based on."""
        steps = self.step_seconds or [self.median_step_s]
        return sum(steps) / len(steps)

    @property
    def p95_step_s(self) -> float:
        """Return the time that 95 % of the steps do not exceed."""
        steps = sorted(self.step_seconds) or [self.median_step_s]
        return steps[math.ceil(0.95 * len(steps)) - 1]

    @property
    def worst_step_s(self) -> float:
        """Return the time of the slowest step."""
        return max(self.step_seconds, default=self.median_step_s)

    @property
    def steps_per_s(self) -> float:
        """Return optimizer steps a second."""
        return 1 / self.mean_step_s if self.mean_step_s else math.inf

    @property
    def stalls(self) -> list[str]:
        """Return which steps stall, in words, if the mean is far above the median; else nothing."""
        mean, median = self.mean_step_s, self.median_step_s
        slow = [seconds for seconds in self.step_seconds if seconds > mean]
        if not slow or mean <= _STALLING * median:
            return []
        share = round(len(self.step_seconds) / len(slow))
        each = format_seconds(sum(slow) / len(slow))
        return [f"steps stall: 1 step in {share} takes {each}, the median step {format_seconds(median)}"]


@dataclass(frozen=True, slots=True)
class Heat:
    """What a repeat shares with the repeats that it took turns with.

    name: equal for all repeats of one heat. turn_seconds: the mean time of the timed steps of each turn.
    alone: the same, of plain PyTorch without communication on the same workload; empty where it did not run.
    machine: part of the machine's yardstick -> its seconds in each turn. yardstick: that one's version.
    """

    name: str
    turn_seconds: list[float]
    alone: list[float] = field(default_factory=list)
    machine: dict[str, list[float]] = field(default_factory=dict)
    yardstick: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryPeaks:
    """Peak bytes over the timed steps, the largest over ranks; `exact` is false where they were estimated.

    peak_reserved_bytes: what torch's allocator held of a GPU for the peak. context_bytes: what the process
    held of it beside that (CUDA's context, kernels, buffers of NCCL), where the driver tells it.
    """

    peak_device_bytes: int | None
    peak_host_bytes: int | None
    peak_rss_bytes: int | None
    by_category: dict[str, int] = field(default_factory=dict)
    exact: bool = True
    peak_reserved_bytes: int | None = None
    context_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls of one collective in one step on one rank, and the payload bytes that rank passed to it."""

    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Coefficient:
    """The measured size of a term of the step over its correct size; 1 is right.

    error: half of its interval; infinite if nothing in the run determines it.
    """

    term: str
    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Correctness:
    """The verdict and its evidence.

    diagnosis: what is wrong, in words. not_checked: `update`, `scale`: checks for which the engine does not
    show its state; such a configuration is never the best. coefficients: of the replayed update and the first
    gradient. deterministic_steps: the number of steps before the warm-up on a GPU that ran under torch's
    deterministic algorithms and decided `identical`; 0 if all steps decided it. checked_steps: up to which
    step (of `steps`) a large fault would have been named; None if nothing was judged. differs_along: axes
    along which the row differs from the base row although its own reference agrees: told, not judged.
    """

    verdict: VerdictName
    error_ratio: float | None = None
    max_abs_diff: float | None = None
    max_ulp_diff: int | None = None
    worst_parameter: str | None = None
    first_differing_step: int | None = None
    loss_max_abs_diff: float | None = None
    grad_norm_max_abs_diff: float | None = None
    diagnosis: str | None = None
    not_checked: list[str] = field(default_factory=list)
    coefficients: list[Coefficient] = field(default_factory=list)
    deterministic_steps: int = 0
    checked_steps: int | None = None
    steps: int | None = None
    differs_along: list[str] = field(default_factory=list)


OTHER_LOAD = 0.10
"""Share of the usable CPU time that others may take before a repeat counts as disturbed."""

STOLEN = 0.03
"""Share of the usable CPU time that a hypervisor may take."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What took CPU time from a repeat.

    load, stolen: what other processes and a hypervisor took, as shares of the usable CPU time. throttled: how
    often the CPU was slowed for heat.
    """

    load: float
    stolen: float = 0.0
    throttled: int = 0

    @property
    def severity(self) -> float:
        """0 when undisturbed; above 1 the figures suffered. Orders two runs of one repeat."""
        return max(self.load / OTHER_LOAD, self.stolen / STOLEN, 2.0 * (self.throttled > 0))

    def effects(self) -> dict[str, str]:
        """Return what disturbed the repeat, and how much, in words; empty when nothing did."""
        effects = {}
        if self.load > OTHER_LOAD:
            effects["the machine was loaded"] = f"other processes took {self.load:.0%} of the CPU time"
        if self.stolen > STOLEN:
            effects["the hypervisor took CPU time"] = f"{self.stolen:.0%}"
        if self.throttled:
            effects["the CPU was throttled for heat"] = f"{self.throttled} times"
        return effects

    def __str__(self) -> str:
        return "; ".join(f"{effect}: {size}" for effect, size in self.effects().items())


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that a scheduler gave to a repeat, and from when to when, in seconds since 1970."""

    nodes: list[str]
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Record:
    """One repeat of one trial, finished or failed.

    counts: exact counts of rank 0 in one step: allocations, operators, flops, ...
    elapsed_s: seconds of the whole repeat without its reference: start, build, steps, verification. The time
    that it waits for its turns counts if it takes turns with another version (`zbench compare --paired`), and
    does not count in a heat of its own sweep.
    environment: path and versions of the Python environment that ran it, if that is not zbench's own.
    machine: the kind of machine where rank 0 ran, in words; None in older records.
    inputs: the user's own files that rank 0 read, each with a digest of its contents.
    heat: shared with the repeats that it took turns with; None if it ran alone.
    losses: rank 0's mean loss of each step, untimed ones included; empty without a reference.
    placement: where and when it ran, if a scheduler chose that.
    disturbance: of a repeat that ended well; None where nobody watched, and in older records.
    """

    run_id: str
    trial_id: str
    repeat: int
    axes: dict[str, Any]
    config: dict[str, Any]
    outcome: Outcome
    error: Failure | None = None
    timing: Timing | None = None
    memory: MemoryPeaks | None = None
    traffic: dict[str, Traffic] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    correctness: Correctness = Correctness(verdict="unchecked")
    warnings: list[str] = field(default_factory=list)
    elapsed_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    machine: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    heat: Heat | None = None
    losses: list[float] = field(default_factory=list)
    placement: Placement | None = None
    disturbance: Disturbance | None = None
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `lines.decode` is the inverse."""
        return dataclasses.asdict(self)
