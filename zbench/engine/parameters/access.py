"""Whole parameters, from outside (`engine.gathered`), and those that are not trained."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from zbench.engine.parameters.base import Parameters, ParamInfo, Values, write_segments
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.released import data_is_read
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.protocols import Collectives, Tag
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.collective_checks import WRITE, all_or_none
from zbench.errors import UsageError

_VALUES = Tag("values written by gathered(write=True)")


def parameters_of(
    model: nn.Module, target: nn.Module | nn.Parameter | Iterable[nn.Parameter]
) -> dict[str, nn.Parameter]:
    """Return the parameters that are meant, by name; UsageError for one that is not the model's."""
    if isinstance(target, nn.Module):
        parameters = list(target.parameters())
    else:
        parameters = [target] if isinstance(target, nn.Parameter) else list(target)
    names = {id(p): name for name, p in model.named_parameters()}
    for p in parameters:
        if id(p) not in names:
            raise UsageError(
                "gathered: expected a module of the engine's model, or parameters of it, got"
                f" {'a parameter of something else' if isinstance(p, nn.Parameter) else type(p).__name__}"
            )
    return {names[id(p)]: p for p in parameters}


class Access:
    """Makes parameters whole for a while: `hold` returns what keeps them so, `absorb` takes changes over.

    An edit in a context for reading counts as any other edit between steps: every rank must make it alike.
    """

    def __init__(
        self,
        collectives: Collectives,
        agreement: Agreement,
        hold: Callable[[Sequence[nn.Parameter]], AbstractContextManager[None]],
        absorb: Callable[[], None],
        stores: Sequence[Parameters],
    ) -> None:
        self._collectives, self._agreement, self._hold, self.absorb = collectives, agreement, hold, absorb
        self._stores = stores

    def edits(self) -> dict[str, int]:
        """Return the names of the parameters that were edited since the last step, and their checksums."""
        return {t.name: s.edited[t.index] for s in self._stores for t in s.param_infos if t.index in s.edited}

    def checksums(self, names: Collection[str]) -> dict[str, int | None]:
        """Return the checksums of parameters with these names; None for values that are not here."""
        return {t.name: s.checksum(t) for s in self._stores for t in s.param_infos if t.name in names}

    @contextmanager
    def open(self, parameters: Mapping[str, nn.Parameter], *, write: bool) -> Iterator[None]:
        """Hold the parameters; with `write`, give every rank the values that rank 0 has at the end."""
        self.absorb()
        with ExitStack() as stack:
            stack.enter_context(self._hold(list(parameters.values())))
            if write:
                stack.enter_context(self._writing(parameters))
            for parameter in parameters.values():  # an alias of it may be changed
                data_is_read(parameter)
            yield

    @contextmanager
    def _writing(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        before = {name: p.detach().clone() for name, p in parameters.items()}
        try:
            with all_or_none(self._collectives, self._agreement, WRITE) as alike:
                yield
                alike += [f"{name!r} {list(p.shape)} {p.dtype}" for name, p in parameters.items()]
        except BaseException:
            with torch.no_grad():
                for name, p in parameters.items():
                    p.copy_(before[name])
            raise
        with torch.no_grad():
            for p in parameters.values():
                values = p.detach().contiguous()
                self._collectives.broadcast(values, 0, _VALUES).wait()
                p.copy_(values)
        self.absorb()


class Frozen:
    """Parameters that are read and written whole, by the same calls on every rank. These are in place."""

    def __init__(self, members: Sequence[ParamInfo]) -> None:
        self.members = members

    def fill(self, value: Values) -> None:
        """Store `value(member)` of every member, before the model uses what is stored here."""

    def read(self, member: ParamInfo) -> Tensor:
        """Return a copy of the whole value, in the parameter's dtype."""
        return member.parameter.detach().clone()

    def parts(self) -> dict[str, Tensor]:
        """Return `NAME@START` -> view of what this rank has, flat and in the parameter's dtype."""
        return {f"{t.name}@0": t.parameter.detach().reshape(-1) for t in self.members}

    @torch.no_grad()
    def load(self, value: Callable[[ParamInfo], Tensor]) -> None:
        """Take over `value(member)` for every member."""
        for t in self.members:
            t.parameter.copy_(value(t))

    def settle(self) -> None:
        """A step was taken: free what nobody needs between steps."""

    def leave(self) -> None:
        """The engine is closed: the model's parameters are nobody's now."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return what is held now."""
        return {"parameters": sum(t.parameter.nbytes for t in self.members)}


class FrozenShards(Frozen):
    """In a sharded store of their own, without gradients, masters or moments."""

    def __init__(self, store: ShardedParameters, gatherer: Gatherer) -> None:
        super().__init__(store.param_infos)
        self.store, self.gatherer = store, gatherer

    def fill(self, value: Values) -> None:
        write_segments(self.store.shard, self.members, value, self.store.owned)

    def read(self, member: ParamInfo) -> Tensor:
        with self.gatherer.holding([member.parameter]):
            return super().read(member)

    def parts(self) -> dict[str, Tensor]:
        parts = {}
        for s in self.store.shard.segments:
            span, name = self.store.shard.layout.spans[s.parameter], self.members[s.parameter].name
            length = min(s.length, span.stop - s.flat)
            if length > 0:
                parts[f"{name}@{s.flat - span.start}"] = self.store.owned(s)[:length]
        return parts

    def load(self, value: Callable[[ParamInfo], Tensor]) -> None:
        self.store.release()  # no copy reads what is written; what it brings is gathered anew below
        self.fill(value)
        self.store.settle()

    def settle(self) -> None:
        self.store.edited.clear()
        for group in self.store.groups:
            if not (group.resident or group.frames):
                self.store.reshard(group)

    def leave(self) -> None:
        self.store.leave()

    def bytes_by_category(self) -> dict[str, int]:
        return self.store.bytes_by_category()
