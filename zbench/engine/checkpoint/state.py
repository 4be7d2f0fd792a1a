"""Everything a resumed run needs, as named tensors; the same keys at every stage and world size.

`param.NAME` float32 master weights and `exp_avg.NAME`, `exp_avg_sq.NAME`, `max_exp_avg_sq.NAME` in the
moments' dtype, of the parameter's shape; `step.NAME` its updates so far (int64); `frozen.NAME`,
`buffer.NAME` what is not trained; `engine.steps` (int64), `engine.loss_scale` (float64: scale, good steps)
and `group.N` (float64: lr, beta1, beta2, eps, weight decay).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.optimizer.shard_optimizer import MOMENTS, ShardOptimizer
from zbench.engine.parameters.access import Frozen
from zbench.engine.parameters.base import Parameters, ParamInfo, write_segments
from zbench.engine.policies import LossScaling
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import Segment, ShardLayout
from zbench.errors import UsageError

_TRAINED = ("param", "frozen")  # where a trained parameter's values are looked for
_FROZEN = ("frozen", "param")


@dataclass(frozen=True, slots=True)
class LocalState:
    """One rank's part: runs of flattened tensors by `KEY@START`, what is not sharded, and the parameters'
    shapes.
    """

    pieces: dict[str, Tensor]
    common: dict[str, Tensor]
    shapes: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One tensor of the state. `read` returns it whole, on every rank; it is a collective."""

    key: str
    dtype: torch.dtype
    shape: torch.Size
    read: Callable[[], Tensor]


def set_masters(
    optimizer: ShardOptimizer, parameters: Parameters, value: Callable[[ParamInfo], Tensor]
) -> None:
    """Set master weights to `value(param_info)`, whole tensors, and this rank's part of the parameters
    accordingly; `parameters.settle` publishes it.
    """
    optimizer.release()
    infos = parameters.param_infos
    write_segments(optimizer.shard, infos, value, lambda s: optimizer.masters[s.dtype_group].of(s))
    for s in optimizer.shard.segments:
        masters = optimizer.masters[s.dtype_group]
        if (out := masters.out(s)) is not None:
            out.copy_(masters.of(s))
            masters.deliver(s)


class EngineState:
    """Reads and writes the state in this rank's shard, in the other ranks' shards and in the model."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: ShardOptimizer,
        parameters: Parameters,
        collectives: Collectives,
        scaling: LossScaling,
        frozen: Frozen,
    ) -> None:
        self.frozen = frozen
        self.model, self.param_infos, self.optimizer = model, parameters.param_infos, optimizer
        self.parameters, self.collectives, self.scaling = parameters, collectives, scaling
        self.shard = optimizer.shard
        self._consolidator = Consolidator(self.shard, collectives)

    def full_values(self) -> dict[str, Tensor]:
        """Return name -> float32 values of every parameter, whole, on every rank."""
        frozen = {t.name: self.frozen.read(t).float() for t in self.frozen.members}
        return {**self._whole(self._master, torch.float32), **frozen}

    def full_moments(self, kind: str) -> dict[str, Tensor]:
        """Return name -> one kind of moment, whole, on every rank; empty where there is none."""
        local = self.optimizer.moments.get(kind)
        return {} if local is None else self._whole(_in(local), self.optimizer.moments.dtype)

    def entries(self) -> Iterator[StateEntry]:
        """Yield the whole state; every rank reads the same entries in the same order, one at a time."""
        for t in self.param_infos:
            yield StateEntry(f"param.{t.name}", torch.float32, t.parameter.shape, partial(self.master, t))
        for kind in MOMENTS:
            if self.optimizer.moments.get(kind) is not None:
                for t in self.param_infos:
                    read = partial(self.moment, t, kind)
                    yield StateEntry(
                        f"{kind}.{t.name}", self.optimizer.moments.dtype, t.parameter.shape, read
                    )
        for key, value in self._numbers().items():
            yield StateEntry(key, value.dtype, value.shape, value.detach().clone)
        for t in self.frozen.members:
            yield StateEntry(
                f"frozen.{t.name}", t.parameter.dtype, t.parameter.shape, partial(self.frozen.read, t)
            )
        for name, value in self.model.named_buffers():
            yield StateEntry(f"buffer.{name}", value.dtype, value.shape, value.detach().clone)

    def full(self) -> dict[str, Tensor]:
        """Return the whole state in CPU memory, the same on every rank."""
        return {entry.key: entry.read().cpu() for entry in self.entries()}

    def master(self, t: ParamInfo) -> Tensor:
        """Return one parameter's whole master weights, float32, on every rank."""
        return self._consolidator.whole([t.index], self._master, torch.float32)[0].view(t.parameter.shape)

    def moment(self, t: ParamInfo, kind: str) -> Tensor:
        """Return one kind of moment of one parameter, whole, on every rank."""
        buffer = self.optimizer.moments.get(kind)
        assert buffer is not None
        whole = self._consolidator.whole([t.index], _in(buffer), self.optimizer.moments.dtype)
        return whole[0].view(t.parameter.shape)

    def local(self) -> LocalState:
        """Return this rank's part of the state; state that every rank holds whole is in rank 0's part."""
        pieces: dict[str, Tensor] = {}
        for s in self.shard.segments_to_save:
            span, name = self.shard.layout.spans[s.parameter], self.param_infos[s.parameter].name
            start = s.flat - span.start
            length = min(s.length, span.length - start)
            pieces[f"param.{name}@{start}"] = self._master(s)[:length].cpu().clone()
            for kind in MOMENTS:
                if (moment := self.optimizer.moments.get(kind)) is not None:
                    pieces[f"{kind}.{name}@{start}"] = moment.run(s.local, length).cpu().clone()
        shapes = {t.name: list(t.parameter.shape) for t in self.param_infos}
        return LocalState(pieces, self._small(), shapes)

    def _small(self) -> dict[str, Tensor]:
        kinds = ("param.", *(f"{kind}." for kind in MOMENTS))
        return {e.key: e.read().cpu() for e in self.entries() if not e.key.startswith(kinds)}

    def _numbers(self) -> dict[str, Tensor]:
        o = self.optimizer
        groups = [(g["lr"], *g["betas"], g["eps"], g["weight_decay"]) for g in o.groups]
        return {
            "engine.steps": torch.tensor(o.count),
            "engine.loss_scale": torch.tensor(
                [self.scaling.scale, self.scaling.good_steps], dtype=torch.float64
            ),
            **{f"group.{k}": torch.tensor(values, dtype=torch.float64) for k, values in enumerate(groups)},
            **{f"step.{t.name}": torch.tensor(o.count - o.skipped_steps[t.index]) for t in self.param_infos},
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a whole state; UsageError names what is missing or does not fit, and nothing has
        changed then.

        A parameter that is frozen here and was trained there gets the saved master weights, and the reverse;
        what is trained only here begins without moments.
        """
        keys = self._check(state)
        self.parameters.mark_updated([True] * len(self.param_infos))
        for kind in MOMENTS:
            local = self.optimizer.moments.get(kind)
            if local is not None:
                for s in self.shard.segments:
                    local.run(s.local, s.length).zero_()
                moments = partial(_of_kind, state, kind)
                write_segments(self.shard, self.param_infos, moments, _in(local))
        set_masters(self.optimizer, self.parameters, lambda t: state[keys[t.name]])
        self.parameters.settle()
        self.frozen.load(lambda t: state[keys[t.name]])
        self._load_small(state)

    def _load_small(self, state: Mapping[str, Tensor]) -> None:
        o = self.optimizer
        o.count = int(state["engine.steps"])
        o.skipped_steps = [
            o.count - int(state.get(f"step.{t.name}", torch.tensor(0))) for t in self.param_infos
        ]
        scale, good = state["engine.loss_scale"].tolist()
        self.scaling.resume(scale, int(good))
        for k, group in enumerate(o.groups):
            if f"group.{k}" in state:
                lr, beta1, beta2, eps, decay = state[f"group.{k}"].tolist()
                group.update(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        for name, buffer in self.model.named_buffers():
            if f"buffer.{name}" in state:
                buffer.copy_(state[f"buffer.{name}"])

    def _check(self, state: Mapping[str, Tensor]) -> dict[str, str]:
        """Return the key that holds each parameter's values; UsageError if the state does not fit."""
        key_of: dict[str, str] = {}
        for members, kinds in ((self.param_infos, _TRAINED), (self.frozen.members, _FROZEN)):
            for t in members:
                key = next((f"{kind}.{t.name}" for kind in kinds if f"{kind}.{t.name}" in state), None)
                if key is None:
                    raise UsageError(
                        f"expected '{kinds[0]}.{t.name}' in the state to load, but it is missing; was it"
                        " another model's?"
                    )
                check_others(state, {}, {key: t.parameter})
                key_of[t.name] = key
        for key in state:
            kind, _, name = key.partition(".")
            if kind in _TRAINED and name not in key_of:
                raise UsageError(f"the state to load holds {key!r}, which this model does not have")
        for key in ("engine.steps", "engine.loss_scale"):
            if key not in state:
                raise UsageError(
                    f"expected {key!r} in the state to load, but it is missing; was it made by state_dict()?"
                )
        moments = {f"{kind}.{t.name}": t.parameter for t in self.param_infos for kind in MOMENTS}
        buffers = {f"buffer.{name}": buffer for name, buffer in self.model.named_buffers()}
        check_others(state, self._numbers(), {**moments, **buffers})
        return key_of

    def _master(self, s: Segment) -> Tensor:
        return self.optimizer.masters[s.dtype_group].of(s)

    def _whole(self, part: Callable[[Segment], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return name -> whole tensor, from every rank's parts of the segments."""
        values = self._consolidator.whole([t.index for t in self.param_infos], part, dtype)
        return {t.name: v.view(t.parameter.shape) for t, v in zip(self.param_infos, values, strict=True)}


def _of_kind(state: Mapping[str, Tensor], kind: str, param_info: ParamInfo) -> Tensor | None:
    return state.get(f"{kind}.{param_info.name}")


def _in(local: PartitionedBuffer) -> Callable[[Segment], Tensor]:
    return lambda s: local.run(s.local, s.length)


def check_others(
    state: Mapping[str, Tensor], numbers: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    """Raise UsageError for a tensor that is unlike its namesake here; numbers: counts and hyperparameters."""
    for key, wanted in {**numbers, **like}.items():
        saved = state.get(key, wanted)
        if saved.shape != wanted.shape or saved.is_floating_point() != wanted.is_floating_point():
            raise UsageError(f"expected {key!r} of shape {list(wanted.shape)}, got {list(saved.shape)}")
        if key in numbers and not (saved.isfinite() & (saved >= 0)).all():
            raise UsageError(f"expected {key!r} to be finite and not negative; is the state damaged?")


_WHOLE = Tag("the state of some parameters")
_AT_ONCE = 1 << 22  # elements of several parameters that pass through the device together


class Consolidator:
    """Gathers what `ShardLayout`s share out. Every rank asks for the same parameters in the same order."""

    def __init__(self, shard: ShardLayout, collectives: Collectives) -> None:
        self.shard, self.collectives = shard, collectives
        layout = shard.layout
        self._segments: defaultdict[int, list[Segment]] = defaultdict(list)
        for s in shard.segments:
            if s.flat < layout.spans[s.parameter].stop:  # not padding alone
                self._segments[s.parameter].append(s)

    def whole(
        self, indices: Sequence[int], part: Callable[[Segment], Tensor], dtype: torch.dtype
    ) -> list[Tensor]:
        """Return the elements [numel] of some parameters in CPU memory; `part` returns this rank's of a
        segment.
        """
        values: list[Tensor] = []
        while len(values) < len(indices):
            batch, elements = list[int](), 0
            for i in indices[len(values) :]:
                elements += self.shard.layout.spans[i].length
                if batch and elements > _AT_ONCE:
                    break
                batch.append(i)
            values += self._gathered(batch, part, dtype)
        return values

    def _gathered(
        self, batch: Sequence[int], part: Callable[[Segment], Tensor], dtype: torch.dtype
    ) -> list[Tensor]:
        spans = self.shard.layout.spans
        parts = [
            part(s)[: min(s.length, spans[i].stop - s.flat)].to("cpu", dtype)
            for i in batch
            for s in self._segments[i]
        ]
        own = torch.cat([torch.empty(0, dtype=dtype), *parts])
        if self.shard.keeps_all:
            return [values.clone() for values in own.split([spans[i].length for i in batch])]  # type: ignore[no-untyped-call]
        layout = self.shard.layout
        pieces = [
            (i, shard, at, length)
            for i in batch
            for _, shard, _, at, length in layout.runs(spans[i], layout.blocks)
        ]
        taken = [0] * layout.shards
        for _, shard, _, length in pieces:
            taken[shard] += length
        sent = own.new_zeros(max(taken))
        sent[: own.numel()] = own
        gathered = self.collectives.gather_shards(sent, _WHOLE)
        whole, taken = {i: own.new_empty(spans[i].length) for i in batch}, [0] * len(taken)
        for i, shard, at, length in pieces:
            whole[i][at : at + length] = gathered[shard, taken[shard] : taken[shard] + length]
            taken[shard] += length
        return [whole[i] for i in batch]
