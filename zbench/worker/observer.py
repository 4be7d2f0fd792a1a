"""Observes a trial for its verdict between the timed steps, without an effect on any measured figure."""

import contextlib
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.record.inputs import changed
from zbench.record.record import Correctness
from zbench.spec.trial import TrialSpec
from zbench.verify.diagnosis import Finding
from zbench.verify.evidence import Witness, adam_of, judge_buffers, judge_copies
from zbench.verify.replay import KINDS, Adam, Parts, Residual, replay
from zbench.verify.sketches import Partial, of_parts, sketch, together
from zbench.verify.trajectory import Trajectory, digest, load_reference, load_steps
from zbench.verify.verdict import Judgement, judge, worse
from zbench.workloads.workload import derived_seed

T = TypeVar("T")
_LOT = -2  # beside the seeds of steps, which are not negative, and of the model


class Observer:
    """Notes losses, gradient norms and digests of all parameters of every step, the untimed last one too.

    Some steps are replayed: the first two, the last and a random one, drawn from the trial's seed; but none
    as long as this rank's parameters have the reference's bits. The state before such a step is kept in an
    unnamed file, so that it does not count as memory.
    """

    def __init__(self, engine: TrainingEngine, model: nn.Module, trial: TrialSpec, reference: str) -> None:
        """reference: the path of its file."""
        self._engine = engine
        self._model = model
        self._trial = trial
        self._path = Path(reference)
        self._losses: list[list[float]] = []
        self._infos: list[StepInfo] = []
        self._digests: list[list[int]] = []
        parameters = engine.full_parameters()
        self._first = {name: digest(value.float()) for name, value in parameters.items()}
        self._sizes = {name: value.numel() for name, value in parameters.items()}
        self._replayer = _Replayer(engine, trial, self._path, parameters)
        self._weights: list[list[Tensor]] = []
        self._moments: list[Partial] = []
        self._copies: list[Finding] = []
        self._sketch(parameters)

    @property
    def curve(self) -> list[float]:
        """This rank's mean loss of each step."""
        return [sum(losses) / len(losses) for losses in self._losses]

    def after_step(self, losses: list[float], info: StepInfo) -> None:
        """Note one step; gathers all parameters, so every rank must call it."""
        self._losses.append(losses)
        self._infos.append(info)
        parameters = self._engine.full_parameters()
        digests = {name: digest(value.float()) for name, value in parameters.items()}
        self._digests.append(list(digests.values()))
        step = len(self._infos) - 1
        self._replayer.after_step(step, info.skipped, parameters, digests)
        self._sketch(parameters)
        if step in self._replayer.drawn or step == self._replayer.last:
            self._copies += judge_copies(_own_weights(self._engine, self._model), parameters, dist.get_rank())

    def _sketch(self, parameters: Mapping[str, Tensor]) -> None:
        """Note the sketches of the weights, and of this rank's part of the first moments."""
        names = self._replayer.names
        self._weights.append([sketch(parameters[name]) for name in names if name in parameters])
        self._moments.append(self._replayer.sketched_moments())

    def _trajectory(self) -> Trajectory:
        """Return what this rank saw, with the losses of all ranks."""
        parameters = {name: value.cpu().float() for name, value in self._engine.full_parameters().items()}
        moments = self._replayer.moments(parameters)
        norms = [float("nan") if info.grad_norm is None else info.grad_norm for info in self._infos]
        return Trajectory(
            names=tuple(self._first),
            losses=torch.tensor(from_all(self._losses), dtype=torch.float64).transpose(0, 1),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.tensor(self._digests, dtype=torch.int64),
            parameters=parameters,
            moments={name: value.cpu().float() for name, value in moments.items()},
            sketches=self._sketches(),
            skipped=tuple(step for step, info in enumerate(self._infos) if info.skipped),
        )

    def _sketches(self) -> Tensor:
        """Return sketches [S + 1, P, 2, 64] of weights and moments; NaN for moments that cannot be read."""
        everyone = from_all(self._moments)
        rank = dist.get_rank()
        sizes = {name: self._sizes[name] for name in self._replayer.names}
        steps = zip(*everyone, strict=True)
        moments = [together(of_ranks, rank, sizes) for of_ranks in steps]
        return torch.stack(
            [torch.stack([torch.stack(one) for one in self._weights]), torch.stack(moments)], dim=2
        )

    def verdict(self, inputs: Mapping[str, str]) -> Judgement:
        """Return the verdict. Every rank must call it.

        inputs: digests of the user's files that this trial read. If ranks have different parameters, the
        verdict is that of the worst rank.
        """
        trajectory = self._trajectory()
        reference = load_reference(self._path)
        replayer = self._replayer
        state = [*judge_buffers(self._model, reference, replayer.adams, dist.get_rank()), *self._copies]
        every = from_all((replayer.residuals, replayer.unread, state))
        evidence = Witness(
            adams=replayer.adams,
            residuals=[one for residuals, _, _ in every for one in residuals],
            unread=next((why for _, why, _ in every if why is not None), None),
            unread_moments=replayer.unread_moments,
            gradients=replayer.first_gradients(),
            first=self._first,
            findings=[finding for _, _, findings in every for finding in findings],
            dtype=self._trial.engine.dtype,
        )
        first = self._first_disagreement()
        judgement = Judgement(Correctness("unchecked"))
        if dist.get_rank() == 0 or first is not None:
            if names := changed(reference.inputs, inputs):
                warning = f"{', '.join(names)} changed after the reference was computed; start a new run"
                judgement = Judgement(Correctness("unchecked"), [warning])
            else:
                judgement = judge(trajectory, reference, evidence)
        if first is None:
            return judgement
        judgement = worse(from_all(judgement))
        warning = f"ranks have different parameters since step {first}; the verdict is that of the worst rank"
        return Judgement(judgement.correctness, [*judgement.warnings, warning])

    def _first_disagreement(self) -> int | None:
        """Return the first step (from 1) after which some rank's parameters differ from rank 0's."""
        everyone = torch.tensor(from_all(self._digests))
        differs = (everyone != everyone[0]).any(dim=2).any(dim=0)
        return int(differs.nonzero()[0]) + 1 if bool(differs.any()) else None


class _Replayer:
    """Replays some steps of this rank.

    unread, unread_moments: why the update, and the gradient, cannot be read; None where they can.
    """

    def __init__(
        self, engine: TrainingEngine, trial: TrialSpec, path: Path, parameters: Mapping[str, Tensor]
    ) -> None:
        self._engine = engine
        self.names, self._active, self._digests = load_steps(path)
        self._equals_reference = True  # so far: this rank's parameters
        self.adams = {name: adam_of(name, trial.engine) for name in self.names}
        self.last = last = trial.run.warmup_steps + trial.run.steps
        self.drawn = {2 + derived_seed(trial.run.seed, _LOT, last) % (last - 2)} if last > 2 else set()
        self._steps = {0, 1, last} | self.drawn
        self._skipped: list[bool] = []
        self.residuals: list[Residual] = []
        self.unread: str | None = None
        self.unread_moments: str | None = None
        self._before, self._first_moments = _Spool(), _Spool()
        self._before.put(self._parts(parameters))

    def after_step(
        self, step: int, skipped: bool, parameters: Mapping[str, Tensor], digests: Mapping[str, int]
    ) -> None:
        """Replay the finished step if it is to be replayed; if the next one is, keep the state before it."""
        self._equals_reference &= self._digests[step : step + 1] == [[digests.get(n) for n in self.names]]
        self._skipped.append(skipped)
        if not skipped and self._skipped.count(False) == 1:
            moments = self.moments(parameters)
            if dist.get_rank() == 0:
                self._first_moments.put(moments)
        if not {step, step + 1} & self._steps:
            return
        parts = self._parts(parameters)
        own_parts = _own(parts, parameters, digests) if step in self._steps else {}
        if own_parts and not skipped and not self._equals_reference:
            before = self._before.take()
            counts = self._counts(step)
            rank = dist.get_rank()
            self.residuals += replay(before, own_parts, self.adams, counts, rank=rank, step=step)
        if step + 1 in self._steps:
            self._before.put(parts)

    def first_gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the first update, on rank 0; empty if they cannot be read."""
        moments = self._first_moments.take()
        return {name: m / (1 - self.adams[name].beta1) for name, m in moments.items() if name in self.adams}

    def moments(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the first moments; empty, with the reason in `unread_moments`, if they cannot be read."""
        moments = _read(self._engine, "first_moments") or {}
        shapes = {name: value.shape for name, value in parameters.items()}
        self.unread_moments = _mistake("first_moments()", moments, shapes)
        return {} if self.unread_moments else moments

    def sketched_moments(self) -> Partial:
        """Return sketches of this rank's parts of the first moments, or of whole ones that it can read."""
        parts = None if self.unread is not None else _read(self._engine, "optimizer_parts")
        if parts is None:
            moments = _read(self._engine, "first_moments") or {}
            parts = {f"{name}@": {"exp_avg": moment} for name, moment in moments.items()}
        if not isinstance(parts, dict) or _mistake_of_parts(parts, {}):
            return {}
        trained = {key: part for key, part in parts.items() if key.rpartition("@")[0] in self.adams}
        return of_parts(trained, "exp_avg")

    def _counts(self, step: int) -> dict[str, int]:
        """Return the updates of each parameter so far; 0 of one that this step leaves alone."""
        counts = self._active[[at for at in range(step + 1) if not self._skipped[at]]].sum(axis=0)
        return dict(zip(self.names, (counts * self._active[step]).tolist(), strict=True))

    def _parts(self, parameters: Mapping[str, Tensor]) -> Parts:
        """Return this rank's part; empty, with the reason in `unread`, if the engine has no such method."""
        if self.unread is not None:
            return {}
        parts: Parts | None = _read(self._engine, "optimizer_parts")
        if parts is not None:
            self.unread = _mistake_of_parts(parts, self.adams)
            return {} if self.unread else _on_host(parts)
        moments = self.moments(parameters)
        if self._skipped and not moments:
            self.unread = (
                self.unread_moments or "the engine has neither optimizer_parts() nor first_moments()"
            )
            return {}
        whole = {
            f"{name}@": {"param": value.reshape(-1)}
            | ({"exp_avg": moments[name].reshape(-1)} if name in moments else {})
            for name, value in parameters.items()
        }
        return _on_host(whole)


def _on_host(parts: Parts) -> Parts:
    """Return the parts in CPU memory, where they are replayed; those that are there are not copied."""
    return {key: {kind: value.cpu() for kind, value in part.items()} for key, part in parts.items()}


def _own(parts: Parts, parameters: Mapping[str, Tensor], digests: Mapping[str, int]) -> Parts:
    """Return the parts that this rank replays: of whole parameters that all ranks have alike, its share.

    Without second moments, a rank replays all of its parts: it needs those that it replayed before. Every
    rank must call it.
    """
    whole = {name: value.numel() for name, value in parameters.items()}
    sizes = {key: len(part["param"]) for key, part in parts.items() if "exp_avg_sq" in part}
    replicas = {key: size for key, size in sizes.items() if size == whole.get(key.rpartition("@")[0])}
    everyone = from_all((replicas, digests))
    if any(other != everyone[0] for other in everyone):
        return parts
    mine = sorted(replicas, key=lambda key: (replicas[key], key))[dist.get_rank() :: len(everyone)]
    return {key: part for key, part in parts.items() if key not in replicas or key in mine}


def _own_weights(engine: TrainingEngine, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that the model computes with on this rank; those that it shards are gathered, or
    left out.
    """
    gathered = getattr(engine, "gathered", None)
    with contextlib.nullcontext() if gathered is None else gathered(model):
        return {
            name: p.detach().cpu().clone() for name, p in model.named_parameters() if type(p.data) is Tensor
        }


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


class _Spool:
    """Keeps tensors outside of memory, in a file without a name."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with its owner

    def put(self, tensors: Mapping[str, Any]) -> None:
        """Store these tensors in place of earlier ones."""
        self._file.seek(0)
        self._file.truncate()
        pickle.dump(_packed(tensors), self._file, pickle.HIGHEST_PROTOCOL)

    def take(self) -> dict[str, Any]:
        """Return the stored tensors, in memory that is not torch's; empty if there are none."""
        if self._file.seek(0, 2) == 0:
            return {}
        self._file.seek(0)
        return _unpacked(pickle.load(self._file))


def _packed(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tensors as dtype, shape and bytes: `torch.save` takes several times as long for them."""
    return {
        name: (value.dtype, value.shape, value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        if isinstance(value, Tensor)
        else _packed(value)
        for name, value in tensors.items()
    }


def _unpacked(packed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _unpacked(value)
        if isinstance(value, dict)
        else torch.from_numpy(value[2]).view(value[0]).view(value[1])
        for name, value in packed.items()
    }


def from_all(value: T) -> list[T]:
    """Return every rank's value, in rank order."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return [one for one in everyone if one is not None]
