"""Device bytes of a configuration, by formula where ZeRO has one and fitted where it has none.

Per rank, with P parameters and W ranks (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", 2020, section 3):

    parameters   P x bytes of dtype             / W at stage 3
    gradients    P x bytes of the accumulator   / W from stage 2
    optimizer    P x (moments + master copy)    / W from stage 1; none of the part that is offloaded
    buckets      reduce (twice where communication overlaps) and all-gather, at most P elements each
    activations  one figure per token of a micro-batch, fitted to the peaks that were measured

P is known for the built-in models and fitted for others. The model orders trials and marks the hopeless; it
never decides what a trial measured.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from zbench.errors import UsageError
from zbench.record.record import Record
from zbench.spec.presets import gpt_shape, mlp_shape
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec
from zbench.units import format_bytes

Floats = NDArray[np.float64]
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MIN_OBSERVED = 3
_ROUNDS = 8
_SAFETY = 1.1
"""A trial is hopeless only if predicted to pass the limit by this factor and by the worst error so far."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What one parameter costs a rank, in bytes, and what buckets cost, in bytes a bucket element."""

    per_parameter: float
    bucket_elements: tuple[int, ...]
    bucket_bytes: int
    tokens: int

    def buckets(self, parameters: float) -> float:
        """Return the bytes of all buckets; none is larger than the model."""
        return self.bucket_bytes * sum(min(elements, parameters) for elements in self.bucket_elements)

    def state(self, parameters: float) -> float:
        """Return the bytes of everything but activations."""
        return self.per_parameter * parameters + self.buckets(parameters)


def shares(trial: TrialSpec) -> Shares:
    """Return the formula's terms for a trial."""
    e, ranks = trial.engine, trial.run.world_size
    width = _BYTES[e.dtype]
    moments = (3 if e.optimizer.amsgrad else 2) * _BYTES[e.optimizer.moments_dtype]
    master = 4 if width < 4 else 0
    ratio = e.offload_ratio if isinstance(e.offload_ratio, float) else 1.0
    kept = 1.0 - (ratio if e.offload_optimizer == "cpu" else 0.0)
    parameters = 0.0 if e.offload_param == "cpu" else width / (ranks if e.zero_stage == 3 else 1)
    gradients = _BYTES[e.grad_accum_dtype] / (ranks if e.zero_stage >= 2 else 1)
    optimizer = kept * (moments + master) / (ranks if e.zero_stage >= 1 else 1)
    buckets = [e.reduce_bucket_size] * (2 if e.overlap_comm else 1) if ranks > 1 else []
    buckets += [e.allgather_bucket_size] if e.zero_stage >= 1 and ranks > 1 else []
    tokens = trial.workload.micro_batch_size * trial.workload.sequence_length
    return Shares(parameters + gradients + optimizer, tuple(buckets), width, tokens)


def known_parameters(workload: WorkloadSpec) -> int | None:
    """Return roughly how many parameters a built-in model has (without norms, biases), else None."""
    try:
        if workload.model == "gpt":
            gpt = gpt_shape(workload.preset, workload.options)
            embeddings = gpt.vocabulary * (1 if gpt.tied_head else 2) + workload.sequence_length
            return gpt.width * (12 * gpt.layers * gpt.width + embeddings)
        if workload.model == "mlp":
            mlp = mlp_shape(workload.preset, workload.options)
            return mlp.hidden * (mlp.layers * mlp.hidden + 2 * mlp.vocabulary)
    except UsageError:
        pass
    return None


class MemoryModel:
    """Predicts peak device bytes of a rank from the formula and the peaks seen so far."""

    def __init__(self) -> None:
        self._seen: list[tuple[TrialSpec, int]] = []
        self._fit: tuple[float, float, float] | None = None  # parameters, bytes per token, constant
        self._error = math.inf

    def observe(self, trial: TrialSpec, records: Iterable[Record]) -> None:
        """Learn from what a trial measured."""
        peaks = [r.memory.peak_device_bytes for r in records if r.outcome == "ok" and r.memory is not None]
        known = [peak for peak in peaks if peak is not None]
        if known:
            self._seen.append((trial, max(known)))
            self._refit()

    def predict(self, trial: TrialSpec) -> float | None:
        """Return the bytes expected of a trial; None while the model's size is neither known nor learnt."""
        terms = shares(trial)
        if self._fit is None:
            known = known_parameters(trial.workload)
            return None if known is None else terms.state(known)
        parameters, per_token, constant = self._fit
        return terms.state(parameters) + per_token * terms.tokens + constant

    def rank(self, trial: TrialSpec) -> float:
        """Return a figure that orders trials by memory even before anything was measured."""
        terms = shares(trial)
        parameters = known_parameters(trial.workload) or 1_000_000
        predicted = self.predict(trial)
        return terms.state(parameters) if predicted is None else predicted

    def hopeless(self, trial: TrialSpec, limit: float) -> str | None:
        """Return why a trial cannot fit a limit in bytes, or None where it may."""
        predicted = self.predict(trial)
        if predicted is None or not math.isfinite(self._error):
            return None
        if predicted - self._error <= limit * _SAFETY:
            return None
        return (
            f"needs about {format_bytes(predicted)} by the memory model, the limit is {format_bytes(limit)}"
        )

    def _refit(self) -> None:
        if len(self._seen) < _MIN_OBSERVED:
            return
        terms = [shares(trial) for trial, _ in self._seen]
        peaks = np.array([float(peak) for _, peak in self._seen])
        guess = known_parameters(self._seen[0][0].workload) or _parameters(terms, peaks, math.inf)
        self._fit = _solved(terms, peaks, guess)
        predicted = [self.predict(trial) or 0.0 for trial, _ in self._seen]
        self._error = float(np.max(np.abs(peaks - np.array(predicted))))


def _parameters(terms: Sequence[Shares], peaks: Floats, largest: float) -> float:
    """Return a first guess of the number of parameters: as if peaks were nothing but state."""
    columns = np.array([[term.per_parameter, 1.0] for term in terms])
    solution, _ = nnls(columns, peaks)
    return float(min(solution[0], largest))


def _solved(terms: Sequence[Shares], peaks: Floats, guess: float) -> tuple[float, float, float]:
    """Return (parameters, bytes per token, constant) that fit the peaks best, none of them negative."""
    columns = np.array([[term.per_parameter, float(term.tokens), 1.0] for term in terms])
    scale = columns.max(axis=0)
    fit = (guess, 0.0, 0.0)
    for _ in range(_ROUNDS):  # a bucket is cut at the model's size, which each round knows better
        buckets = np.array([term.buckets(fit[0]) for term in terms])
        solution, _ = nnls(columns / scale, np.maximum(peaks - buckets, 0.0))
        values = solution / scale
        fit = (float(values[0]), float(values[1]), float(values[2]))
    return fit
