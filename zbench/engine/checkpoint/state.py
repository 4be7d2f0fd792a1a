"""Everything a resumed run needs, as named tensors; the same keys at every stage and world size.

`param.NAME` float32 master weights and `exp_avg.NAME`, `exp_avg_sq.NAME`, `max_exp_avg_sq.NAME` in the
moments' dtype, of the parameter's shape; `step.NAME` its updates so far (int64); `frozen.NAME`,
`buffer.NAME` what is not trained; `engine.steps` (int64), `engine.loss_scale` (float64: scale, good steps)
`group.N` (float64: lr, beta1, beta2, eps, weight decay) and `group_of.NAME` (int64: N of a trained one).
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.optimizer.shard_optimizer import MOMENTS, ShardOptimizer
from zbench.engine.parameters.access import Frozen
from zbench.engine.parameters.base import Parameters, ParamInfo, Values, write_segments
from zbench.engine.partition import Extent
from zbench.engine.policies import LossScaling
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import Segment
from zbench.engine.transport.buffers import to_host
from zbench.errors import UsageError

_TRAINED = ("param", "frozen")  # where a trained parameter's values are looked for
_FROZEN = ("frozen", "param")
_WHOLE = Tag("the state of a parameter")
_TOGETHER = 1 << 20  # elements of small parameters that one collective gathers, roughly


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One tensor of the state. `read` returns it whole, on every rank; it is a collective."""

    key: str
    dtype: torch.dtype
    shape: torch.Size
    read: Callable[[], Tensor]


def set_masters(optimizer: ShardOptimizer, parameters: Parameters, value: Values) -> None:
    """Set master weights to `value(param_info)` (see `write_segments`), and this rank's part of the
    parameters accordingly; `parameters.settle` publishes it.
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
        attend: Callable[[], None],
    ) -> None:
        """attend: as of `to_host`."""
        self.frozen, self._attend = frozen, attend
        self.model, self.param_infos, self.optimizer = model, parameters.param_infos, optimizer
        self.parameters, self.collectives, self.scaling = parameters, collectives, scaling
        self.shard = optimizer.shard
        self._segments: defaultdict[int, list[Segment]] = defaultdict(list)
        for s in self.shard.segments:
            if s.flat < self.shard.layout.spans[s.parameter].stop:  # not padding alone
                self._segments[s.parameter].append(s)

    def full_values(self) -> dict[str, Tensor]:
        """Return name -> float32 values of every parameter, whole, on every rank."""
        trained = self._all(self._master, torch.float32)
        return trained | {t.name: self.frozen.read(t).float() for t in self.frozen.members}

    def full_moments(self, kind: str) -> dict[str, Tensor]:
        """Return name -> one kind of moment, whole, on every rank; empty where there is none."""
        kinds = (self._all(part, dtype) for name, part, dtype in self._sharded() if name == kind)
        return next(kinds, {})

    def entries(self) -> Iterator[StateEntry]:
        """Yield the whole state; every rank reads the same entries in the same order, one at a time."""
        for kind, part, dtype in self._sharded():
            for t in self.param_infos:
                read = partial(self._whole, t, part, dtype)
                yield StateEntry(f"{kind}.{t.name}", dtype, t.parameter.shape, read)
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

    def _sharded(self) -> Iterator[tuple[str, Callable[[Segment], Tensor], torch.dtype]]:
        """Yield the kinds of what is sharded, each with this rank's part of a segment, and its dtype."""
        yield "param", self._master, torch.float32
        for kind in MOMENTS:
            if (buffer := self.optimizer.moments.get(kind)) is not None:
                yield kind, _in(buffer), self.optimizer.moments.dtype

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return `NAME@START` -> kind -> views of what this rank has, without padding."""
        parts: dict[str, dict[str, Tensor]] = {}
        for s in self.shard.segments:
            span, name = self.shard.layout.spans[s.parameter], self.param_infos[s.parameter].name
            start = s.flat - span.start
            length = min(s.length, span.length - start)
            if length > 0:
                parts[f"{name}@{start}"] = {k: part(s)[:length] for k, part, _ in self._sharded()}
        return parts | {key: {"param": value} for key, value in self.frozen.parts().items()}

    def _numbers(self) -> dict[str, Tensor]:
        o = self.optimizer
        groups = [(g["lr"], *g["betas"], g["eps"], g["weight_decay"]) for g in o.groups]
        number = partial(torch.tensor, device="cpu")
        return {
            "engine.steps": number(o.count),
            "engine.loss_scale": number([self.scaling.scale, self.scaling.good_steps], dtype=torch.float64),
            **{f"group.{k}": number(values, dtype=torch.float64) for k, values in enumerate(groups)},
            **{f"group_of.{t.name}": number(t.group) for t in self.param_infos},
            **{f"step.{t.name}": number(o.count - o.skipped_steps[t.index]) for t in self.param_infos},
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
        steps = [state.get(f"step.{t.name}") for t in self.param_infos]
        o.skipped_steps = [o.count - (0 if step is None else int(step)) for step in steps]
        scale, good = state["engine.loss_scale"].tolist()
        self.scaling.resume(scale, int(good))
        for k, saved in self.saved_groups(state).items():
            lr, beta1, beta2, eps, decay = state[f"group.{saved}"].tolist()
            o.groups[k].update(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        for name, buffer in self.model.named_buffers():
            if f"buffer.{name}" in state:
                buffer.copy_(state[f"buffer.{name}"])

    def saved_groups(self, state: Mapping[str, Tensor]) -> dict[int, int]:
        """Return which group of a state each optimizer group continues: the one that its parameters were in.

        A group whose parameters were all frozen there continues none. UsageError if the state divides the
        parameters in another way.
        """
        saved: dict[int, tuple[int, str]] = {}
        for t in self.param_infos:
            number = state.get(f"group_of.{t.name}")
            if number is None or f"group.{int(number)}" not in state:
                continue
            there, first = saved.setdefault(t.group, (int(number), t.name))
            if there != int(number):
                raise UsageError(
                    _other_groups(f"{first!r} and {t.name!r} are in one group here, and were in two there")
                )
        continued: dict[int, str] = {}
        for there, name in saved.values():
            if there in continued:
                raise UsageError(
                    _other_groups(
                        f"{continued[there]!r} and {name!r} are in two groups here, and were in one there"
                    )
                )
            continued[there] = name
        return {k: there for k, (there, _) in saved.items()}

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
        groups = {key: torch.zeros(5, device="cpu") for key in state if key.startswith("group.")}
        check_others(state, {**self._numbers(), **groups}, {**moments, **buffers})
        self.saved_groups(state)
        return key_of

    def _master(self, s: Segment) -> Tensor:
        return self.optimizer.masters[s.dtype_group].of(s)

    def _all(self, part: Callable[[Segment], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return name -> whole tensor of every trained parameter; small ones are gathered together."""
        values: dict[str, Tensor] = {}
        ends = itertools.accumulate(t.parameter.numel() for t in self.param_infos)
        numbered = zip(ends, self.param_infos, strict=True)
        for _, group in itertools.groupby(numbered, lambda one: one[0] // _TOGETHER):
            infos = [t for _, t in group]
            values |= zip((t.name for t in infos), self._gathered(infos, part, dtype), strict=True)
        return values

    def _whole(self, t: ParamInfo, part: Callable[[Segment], Tensor], dtype: torch.dtype) -> Tensor:
        return self._gathered([t], part, dtype)[0]

    def _gathered(
        self, infos: Sequence[ParamInfo], part: Callable[[Segment], Tensor], dtype: torch.dtype
    ) -> list[Tensor]:
        """Return parameters' whole tensors in CPU memory, from every rank's parts of their segments.

        Every rank asks for the same parameters in the same order.
        """
        spans = [self.shard.layout.spans[t.index] for t in infos]
        own_parts = [
            [part(s)[: min(s.length, span.stop - s.flat)].to("cpu", dtype) for s in self._segments[t.index]]
            for t, span in zip(infos, spans, strict=True)
        ]
        none = torch.empty(0, dtype=dtype, device="cpu")
        if self.shard.keeps_all:
            values = [torch.cat([none, *parts]) for parts in own_parts]
        else:
            values = self._exchanged(torch.cat([none, *itertools.chain(*own_parts)]), spans)
        return [value.view(t.parameter.shape) for t, value in zip(infos, values, strict=True)]

    def _exchanged(self, own_parts: Tensor, spans: Sequence[Extent]) -> list[Tensor]:
        """Return the whole values of these spans; own_parts: this rank's parts of them, end to end."""
        layout = self.shard.layout
        values = [own_parts.new_empty(span.length) for span in spans]
        taken = [0] * layout.shards
        pieces: list[tuple[Tensor, int, int]] = []  # where it goes, whose it is, and where it is there
        for value, span in zip(values, spans, strict=True):
            for _, shard, _, at, length in layout.runs(span, layout.blocks):
                pieces.append((value[at : at + length], shard, taken[shard]))
                taken[shard] += length
        sent = own_parts.new_zeros(max(taken))
        sent[: own_parts.numel()] = own_parts
        gathered = to_host(self.collectives.gather_shards(sent, _WHOLE), self._attend)
        for out, shard, at in pieces:
            out.copy_(gathered[shard, at : at + len(out)])
        return values


def _other_groups(difference: str) -> str:
    return (
        f"the state to load has other optimizer groups: {difference}; give the engine the param_groups that"
        " the state was saved with (their order is free)"
    )


def _of_kind(state: Mapping[str, Tensor], kind: str, param_info: ParamInfo) -> Tensor | None:
    return state.get(f"{kind}.{param_info.name}")


def _in(local: PartitionedBuffer) -> Callable[[Segment], Tensor]:
    return lambda s: local.run(s.local, s.length)


def check_others(
    state: Mapping[str, Tensor], numbers: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    """Raise UsageError for a tensor that is unlike its namesake here; numbers: counts and hyperparameters."""
    for key, namesake in {**numbers, **like}.items():
        saved = state.get(key, namesake)
        if saved.shape != namesake.shape or saved.is_floating_point() != namesake.is_floating_point():
            raise UsageError(f"expected {key!r} of shape {list(namesake.shape)}, got {list(saved.shape)}")
        if key in numbers and not (saved.isfinite() & (saved >= 0)).all():
            raise UsageError(f"expected {key!r} to be finite and not negative; is the state damaged?")
