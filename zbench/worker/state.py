"""The state of an engine, read for its verdict: the runs of elements that each rank shows, and their sums.

An engine shows a rank's runs of master weights and moments as views (`optimizer_parts`). The sums of the runs
are taken on the device that holds them, and one message a step adds them over the ranks. If an engine shows
no parts, or parts that overlap or leave a gap, whole parameters are read instead (`full_parameters`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from zbench.engine.protocols import TrainingEngine
from zbench.errors import UsageError
from zbench.verify.layout import OwnRun, own_runs
from zbench.verify.replay import KINDS, Adam, Parts
from zbench.verify.sums import CELLS, Run, RunSums, digest

T = TypeVar("T")
_PIECE = 1 << 18
"""Elements that are converted or copied at once."""


@dataclass(frozen=True, slots=True)
class StepSums:
    """The sums of all P parameters after a step, as this rank sees them: of its own replica of each run.

    digests [P] int64: of the float32 bits. weights, moments [P, 128] float64: signed sums of the weights and
    of the first moments; NaN if the engine shows moments of a part of a parameter only.
    """

    digests: NDArray[np.int64]
    weights: NDArray[np.float64]
    moments: NDArray[np.float64]


class EngineState:
    """Reads the state of an engine. Every rank calls the same methods in the same order.

    names: of all parameters, frozen ones too. unread, unread_moments: why the updates, and the first moments,
    cannot be read; None if they can.
    """

    def __init__(self, engine: TrainingEngine, model: nn.Module, adams: Mapping[str, Adam]) -> None:
        """adams: the hyperparameters of the trained parameters, by name."""
        self._engine, self._adams = engine, adams
        self._parameters = dict(model.named_parameters())
        self.shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in self._parameters.items()}
        self.names = tuple(self.shapes)
        self._rows = {name: row for row, name in enumerate(self.names)}
        self.unread: str | None = None
        self.unread_moments: str | None = None
        self._shows_parts = True
        self._agree()

    def parts(self) -> Parts:
        """Return this rank's parts by key: views if the engine shows them, else copies."""
        shown = self._shown_parts() if self._shows_parts else None
        parts = self._whole_parts() if shown is None else shown
        return {key: {kind: v.detach() for kind, v in part.items()} for key, part in parts.items()}

    def checked_parts(self) -> Parts:
        """Return `parts` after the first update, when moments are there for the first time."""
        self._agree()
        return self.parts()

    def trained(self) -> Iterator[OwnRun]:
        """Yield the runs of trained parameters that this rank adds to sums over ranks."""
        return (own for own in self.own if own.is_mine and own.run.name in self._adams)

    def whole_replicas(self) -> Iterator[OwnRun]:
        """Yield the whole trained parameters of which this rank has a replica."""
        return (own for own in self.own if own.run.is_whole and own.run.name in self._adams)

    def sums(self, parts: Parts) -> StepSums:
        """Return the sums of the state, for the replicas that this rank has."""
        digests, weights, moments, counts = self._own_sums(parts)
        columns = [_halves(digests), counts[:, None], weights, moments]
        seen = self._added_to_parameters(np.concatenate(columns, axis=1))
        weights, moments = np.split(seen[:, 3:], 2, axis=1)
        elements = np.array([torch.Size(self.shapes[name]).numel() for name in self.names])
        is_partial = (seen[:, 2] != 0) & (seen[:, 2] != elements)
        moments = np.where(is_partial[:, None], np.nan, moments)
        return StepSums(_digests_of(seen[:, :2]), weights, moments)

    def _added_to_parameters(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [P, K]: sums of values [own runs, K] over the ranks of this rank's replica of the model.

        The replicas of all runs make up several models, each a row of the message. A parameter that this rank
        has whole is its own.
        """
        message = np.zeros((self._models, len(self.names), values.shape[1]))
        rows = [self._rows[own.run.name] for own in self.own]
        for row, own, of_run in zip(rows, self.own, values, strict=True):
            if own.replica < self._models:
                message[own.replica, row] += of_run
        replica = next((own.replica for own in self.own if own.replicas == self._models), 0)
        together: NDArray[np.float64] = added_up(torch.from_numpy(message)).numpy()
        seen = np.array(together[replica])  # torch's memory is the trial's
        for row, own, of_run in zip(rows, self.own, values, strict=True):
            if own.run.is_whole:
                seen[row] = of_run
        return seen

    def _own_sums(self, parts: Parts) -> tuple[NDArray[Any], ...]:
        """Return the digests, signed sums of weights and of moments, and counts of moments of own runs."""
        count = len(self.own)
        digests = np.zeros(count, np.int64)
        weights, moments, counts = np.zeros((count, CELLS)), np.zeros((count, CELLS)), np.zeros(count)
        by_device: dict[torch.device, list[int]] = {}
        for at, own in enumerate(self.own):
            by_device.setdefault(parts[own.key]["param"].device, []).append(at)
        for device, indices in by_device.items():
            mine = [self.own[at] for at in indices]
            sums = self._sums_of(device, tuple(indices))
            values = [parts[own.key]["param"] for own in mine]
            if all(value.dtype == torch.float32 for value in values):
                digests[indices] = sums.digests(values)
            else:
                digests[indices] = [
                    _float32_digest(v, o.run.start) for v, o in zip(values, mine, strict=True)
                ]
            is_trained = [own.run.name in self._adams for own in mine]
            moved = [v if t else None for v, t in zip(values, is_trained, strict=True)]
            means = [
                parts[own.key].get("exp_avg") if t else None for own, t in zip(mine, is_trained, strict=True)
            ]
            weights[indices], moments[indices] = sums.signed_sums(moved, means)
            counts[indices] = [0 if mean is None else len(mean) for mean in means]
        return digests, weights, moments, counts

    def _sums_of(self, device: torch.device, indices: tuple[int, ...]) -> RunSums:
        key = (device, indices)
        if key not in self._takers:
            self._takers[key] = RunSums([self.own[at].run for at in indices], device)
        return self._takers[key]

    def stray_copies(self, parts: Parts, sums: StepSums) -> list[str]:
        """Return the parameters that the model computes with on this rank, and that are not the trained
        weights, rounded to the model's dtype. Weights that the model shards are gathered one at a time.
        """
        dtypes = {name: p.dtype for name, p in self._parameters.items() if name in self._adams}
        rounded = {name: dtype for name, dtype in dtypes.items() if dtype != torch.float32}
        digests = [
            _rounded_digest(parts[own.key]["param"], own.run.start, rounded[own.run.name])
            if own.run.name in rounded
            else 0
            for own in self.own
        ]
        of_rounded = _digests_of(self._added_to_parameters(_halves(np.array(digests, np.int64))))
        strays = []
        for name in dtypes:
            found, row = self._model_digest(name), self._rows[name]
            expected = of_rounded[row] if name in rounded else sums.digests[row]
            if found is not None and found != expected:
                strays.append(name)
        return strays

    def _model_digest(self, name: str) -> int | None:
        """Return the digest of a parameter that the model computes with; None if a rank has a part of it."""
        parameter = self._parameters[name]  # not read from its module, which would gather it for a whole step
        gathered: Callable[[Tensor], AbstractContextManager[object]] | None
        gathered = getattr(self._engine, "gathered", None)
        with contextlib.nullcontext() if gathered is None or _is_here(parameter) else gathered(parameter):
            value = parameter.data
            is_whole = type(value) is Tensor and tuple(value.shape) == self.shapes[name]
            return digest(value.detach()) if is_whole else None

    def _agree(self) -> None:
        """Agree with all ranks whether the engine's parts can be used, and which runs this rank has."""
        self._takers: dict[tuple[torch.device, tuple[int, ...]], RunSums] = {}
        own = self._agreed_on_parts() if self._shows_parts else None
        self._shows_parts = own is not None
        if own is None:
            own = self._agreed_on_whole()
        self.own = own
        several = [one.replicas for one in own if not one.run.is_whole]
        self._models = max(from_all(max(several, default=1)))

    def _agreed_on_parts(self) -> list[OwnRun] | None:
        """Return this rank's runs of the engine's parts; None, perhaps with the reason in `unread`."""
        parts = self._shown_parts()
        mistake = None if parts is None else _mistake_of_parts(parts, self._adams)
        runs = {} if parts is None or mistake else self._runs(parts)
        every = from_all((parts is not None, mistake, runs))
        mistakes = [text for _, text, _ in every if text is not None]
        if mistakes or not all(shows for shows, _, _ in every):
            self.unread = next(iter(mistakes), None)
            return None
        own = own_runs([runs for _, _, runs in every], dist.get_rank(), self.shapes)
        if isinstance(own, str):
            self.unread = f"optimizer_parts(): {own}"
            return None
        return own

    def _agreed_on_whole(self) -> list[OwnRun]:
        """Return the runs of whole parameters; ValueError if the engine does not show all."""
        runs = self._runs(self._whole_parts())
        own = own_runs([runs] * dist.get_world_size(), dist.get_rank(), self.shapes)
        if isinstance(own, str):
            missing = sorted(self._adams.keys() - {run.name for run in runs.values()}) or list(self.shapes)
            text = f"lacks {len(missing)} trained parameters: {missing[0]}, ..."
            raise ValueError(f"the engine's full_parameters() {text}")
        return own

    def _runs(self, parts: Parts) -> dict[str, Run]:
        """Return the runs that parts show. A key `NAME@` without a number starts at 0."""
        runs = {}
        for key, part in parts.items():
            name, _, start = key.rpartition("@")
            if name in self.shapes:
                first = int(start) if start.isdecimal() else 0
                runs[key] = Run(name, self.shapes[name], first, len(part["param"]))
        return runs

    def _shown_parts(self) -> Parts | None:
        """Return the engine's parts, and the parameters that it does not train and the model has whole."""
        parts = _read(self._engine, "optimizer_parts")
        if not isinstance(parts, dict):
            return parts  # type: ignore[no-any-return]
        shown = {key.rpartition("@")[0] for key in parts}
        return parts | {
            f"{name}@0": {"param": p.data.reshape(-1)}
            for name, p in self._parameters.items()
            if name not in self._adams and name not in shown and type(p.data) is Tensor
        }

    def _whole_parts(self) -> Parts:
        """Return whole parameters and the first moments that can be read; every rank has all."""
        values = self._engine.full_parameters()
        moments = self.first_moments()
        return {
            f"{name}@0": {"param": value.reshape(-1)}
            | ({"exp_avg": moments[name].reshape(-1)} if name in moments else {})
            for name, value in values.items()
            if name in self.shapes
        }

    def first_moments(self) -> dict[str, Tensor]:
        """Return whole first moments; empty, with the reason in `unread_moments`, if they cannot be read."""
        moments = _read(self._engine, "first_moments") or {}
        shapes = {name: torch.Size(shape) for name, shape in self.shapes.items()}
        self.unread_moments = _mistake("first_moments()", moments, shapes)
        return {} if self.unread_moments else moments


def _is_here(parameter: Tensor) -> bool:
    """Whether a parameter of the built-in engine has its values on this rank now."""
    with contextlib.suppress(UsageError):
        return type(parameter.data) is Tensor
    return False


def _halves(digests: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return [R, 2]: digests in two numbers of 32 bits, which float64 adds up exactly over the ranks."""
    halves: NDArray[np.float64] = digests.view(np.uint32).reshape(-1, 2).astype(np.float64)
    return halves


def _digests_of(halves: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the digests in sums of `_halves`."""
    low, high = halves.T.astype(np.uint64)
    digests: NDArray[np.int64] = (low + (high << np.uint64(32))).view(np.int64)
    return digests


def _float32_digest(values: Tensor, start: int) -> int:
    """Return the digest of a run's elements in float32."""
    return _rounded_digest(values, start, torch.float32)


def _rounded_digest(values: Tensor, start: int, dtype: torch.dtype) -> int:
    """Return the signed digest of a run's elements, rounded to a dtype."""
    total = 0
    for first in range(0, len(values), _PIECE):
        total += digest(values[first : first + _PIECE].to(dtype), start + first)
    total %= 2**64
    return total - 2**64 * (total >= 2**63)


def _read(engine: TrainingEngine, method: str) -> Any:
    """Return the result of an optional method of the protocol; None if the engine does not have it."""
    read = getattr(engine, method, None)  # a class may say None of what it does not have
    with contextlib.suppress(NotImplementedError):
        return None if read is None else read()
    return None


def _mistake(subject: str, values: Any, shapes: Mapping[str, torch.Size]) -> str | None:
    """Return what is wrong with a method's result, in one message; None if it is valid."""
    if not isinstance(values, dict) or not values.keys() <= shapes.keys():
        return f"{subject} is no dict of tensors by {', '.join(list(shapes)[:4])}"
    for name, value in values.items():
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shapes[name]:
            kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            return f"{subject}: {name!r} is {kind}, expected floats {list(shapes[name])}"
    return None


def _mistake_of_parts(parts: Any, adams: Mapping[str, Adam]) -> str | None:
    """Return what is wrong with the result of `optimizer_parts`, or missing for the optimizer's options."""
    if not isinstance(parts, dict):
        return "optimizer_parts() is no dict"
    for key, part in parts.items():
        subject = f"optimizer_parts()[{key!r}]"
        adam = adams.get(key.rpartition("@")[0])
        param = part.get("param") if isinstance(part, dict) else None
        size = torch.Size([param.numel() if isinstance(param, Tensor) else 0])
        if mistake := _mistake(subject, part, dict.fromkeys(KINDS, size)):
            return mistake
        if adam is not None and adam.amsgrad and "exp_avg_sq" in part and "max_exp_avg_sq" not in part:
            return f"{subject} has no max_exp_avg_sq, which amsgrad needs"
    return None


def added_up(table: Tensor, kind: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """Return the sum, or another reduction, of a CPU tensor over all ranks."""
    result = table.clone()
    if dist.get_world_size() > 1:
        dist.all_reduce(result, kind)
    return result


def from_all(value: T) -> list[T]:
    """Return every rank's value, in rank order."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return [one for one in everyone if one is not None]
