"""Everything a resumed run needs, as named tensors; the same keys at every stage and world size.

`param.NAME` float32 master weights and `exp_avg.NAME`, `exp_avg_sq.NAME`, `max_exp_avg_sq.NAME` in the
moments' dtype, of the parameter's shape; `step.NAME` its updates so far (int64); `frozen.NAME`,
`buffer.NAME` what is not trained; `engine.steps` (int64), `engine.loss_scale` (float64: scale, good steps)
and `group.N` (float64: lr, beta1, beta2, eps, weight decay).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.optimizer.shard_optimizer import MOMENTS, ShardOptimizer
from zbench.engine.parameters.frozen import Frozen
from zbench.engine.parameters.replicated import Parameters, ParamInfo, write_segments
from zbench.engine.policies import LossScaling
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.shard_layout import Segment
from zbench.errors import UsageError

_STATE = Tag("the optimizer's state")


@dataclass(frozen=True, slots=True)
class LocalState:
    """One rank's part: runs of flattened tensors by `KEY@START`, what is not sharded, and the parameters'
    shapes.
    """

    pieces: dict[str, Tensor]
    common: dict[str, Tensor]
    shapes: dict[str, list[int]]


def set_masters(
    optimizer: ShardOptimizer,
    parameters: Parameters,
    param_infos: Sequence[ParamInfo],
    value: Callable[[ParamInfo], Tensor],
) -> None:
    """Set master weights to `value(param_info)`, whole tensors, and set the parameters accordingly."""
    optimizer.release()
    write_segments(optimizer.shard, param_infos, value, lambda s: optimizer.masters[s.dtype_group].of(s))
    for s in optimizer.shard.segments:
        masters = optimizer.masters[s.dtype_group]
        if (out := masters.out(s)) is not None:
            out.copy_(masters.of(s))
            masters.deliver(s)
    parameters.settle()


class EngineState:
    """Reads and writes the state in this rank's shard, in the other ranks' shards and in the model."""

    def __init__(
        self,
        model: nn.Module,
        param_infos: Sequence[ParamInfo],
        optimizer: ShardOptimizer,
        parameters: Parameters,
        collectives: Collectives,
        scaling: LossScaling,
        frozen: Frozen,
    ) -> None:
        self.frozen = frozen
        self.model, self.param_infos, self.optimizer = model, param_infos, optimizer
        self.parameters, self.collectives, self.scaling = parameters, collectives, scaling
        self.shard = optimizer.shard

    def full_masters(self) -> dict[str, Tensor]:
        """Return name -> float32 master weights, whole, on every rank."""
        local = torch.zeros(self.shard.length, dtype=torch.float32)
        for s in self.shard.segments:
            local[s.local : s.local + s.length].copy_(self._master(s))
        return self._whole(local)

    def full_moments(self, kind: str) -> dict[str, Tensor]:
        """Return name -> one kind of moment, whole, on every rank; empty where there is none."""
        local = self.optimizer.moments.get(kind)
        return {} if local is None else self._whole(local.cpu())

    def full(self) -> dict[str, Tensor]:
        """Return the whole state, the same on every rank."""
        state = {f"param.{name}": value for name, value in self.full_masters().items()}
        for kind in MOMENTS:
            state.update({f"{kind}.{name}": value for name, value in self.full_moments(kind).items()})
        return {**state, **self.small()}

    def local(self) -> LocalState:
        """Return this rank's part of the state; state that every rank holds whole is in rank 0's part."""
        pieces: dict[str, Tensor] = {}
        for s in self.shard.segments_to_save:
            span, name = self.shard.layout.spans[s.parameter], self.param_infos[s.parameter].name
            start = s.flat - span.start
            length = min(s.length, span.numel - start)
            pieces[f"param.{name}@{start}"] = self._master(s)[:length].cpu().clone()
            for kind in MOMENTS:
                if (moment := self.optimizer.moments.get(kind)) is not None:
                    pieces[f"{kind}.{name}@{start}"] = moment.run(s.local, length).cpu().clone()
        shapes = {t.name: list(t.parameter.shape) for t in self.param_infos}
        return LocalState(pieces, self.small(), shapes)

    def small(self) -> dict[str, Tensor]:
        """Return the state that every rank holds whole."""
        o = self.optimizer
        groups = [(g["lr"], *g["betas"], g["eps"], g["weight_decay"]) for g in o.groups]
        return {
            "engine.steps": torch.tensor(o.count),
            "engine.loss_scale": torch.tensor(
                [self.scaling.scale, self.scaling.good_steps], dtype=torch.float64
            ),
            **{f"group.{k}": torch.tensor(values, dtype=torch.float64) for k, values in enumerate(groups)},
            **{f"step.{t.name}": torch.tensor(o.count - o.skipped_steps[t.index]) for t in self.param_infos},
            **{f"frozen.{name}": value.cpu().clone() for name, value in self.frozen.values()},
            **{f"buffer.{name}": value.cpu().clone() for name, value in self.model.named_buffers()},
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a whole state; UsageError names what is missing or does not fit, and nothing has
        changed then.
        """
        self._check(state)
        for kind in MOMENTS:
            local = self.optimizer.moments.get(kind)
            if local is not None:
                for s in self.shard.segments:
                    local.run(s.local, s.length).zero_()
                moments = partial(_of_kind, state, kind)
                write_segments(self.shard, self.param_infos, moments, _in(local))
        set_masters(self.optimizer, self.parameters, self.param_infos, lambda t: state[f"param.{t.name}"])
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
        prefix = "frozen."
        self.frozen.load({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        for name, buffer in self.model.named_buffers():
            if f"buffer.{name}" in state:
                buffer.copy_(state[f"buffer.{name}"])

    def _check(self, state: Mapping[str, Tensor]) -> None:
        wanted = {f"param.{t.name}": t.parameter.shape for t in self.param_infos}
        known = {"param." + name for name, _ in self.model.named_parameters()}
        for key, shape in wanted.items():
            if key not in state:
                raise UsageError(
                    f"expected {key!r} in the state to load, but it is missing; was it another model's?"
                )
            if state[key].shape != shape:
                raise UsageError(f"expected {key!r} of shape {list(shape)}, got {list(state[key].shape)}")
        for key in state:
            if key.startswith("param.") and key not in known:
                raise UsageError(f"the state to load holds {key!r}, which this model does not have")
        for key in ("engine.steps", "engine.loss_scale"):
            if key not in state:
                raise UsageError(
                    f"expected {key!r} in the state to load, but it is missing; was it made by state_dict()?"
                )

    def _master(self, s: Segment) -> Tensor:
        return self.optimizer.masters[s.dtype_group].of(s)

    def _whole(self, local: Tensor) -> dict[str, Tensor]:
        """Return name -> whole tensor, from every rank's `local` [shard.length]."""
        flat = self.shard.assemble(local, lambda part: self.collectives.all_gather_small(part, _STATE))
        spans = self.shard.layout.spans
        return {
            t.name: flat[spans[t.index].start : spans[t.index].stop].view(t.parameter.shape).clone()
            for t in self.param_infos
        }


def _of_kind(state: Mapping[str, Tensor], kind: str, param_info: ParamInfo) -> Tensor | None:
    return state.get(f"{kind}.{param_info.name}")


def _in(local: PartitionedBuffer) -> Callable[[Segment], Tensor]:
    return lambda s: local.run(s.local, s.length)
