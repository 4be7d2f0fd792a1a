"""Reading and writing whole parameters from outside: `engine.gathered`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import nn

from zbench.engine.protocols import Collectives, Tag
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.consent import WRITE, all_or_none
from zbench.errors import UsageError

_VALUES = Tag("values written by gathered(write=True)")


def parameters_of(
    model: nn.Module, what: nn.Module | nn.Parameter | Iterable[nn.Parameter]
) -> dict[str, nn.Parameter]:
    """Return the parameters that are meant, by name; UsageError for one that is not the model's."""
    if isinstance(what, nn.Module):
        given = list(what.parameters())
    else:
        given = [what] if isinstance(what, nn.Parameter) else list(what)
    names = {id(p): name for name, p in model.named_parameters()}
    for p in given:
        if id(p) not in names:
            raise UsageError(
                "gathered: expected a module of the engine's model, or parameters of it, got"
                f" {'a parameter of something else' if isinstance(p, nn.Parameter) else type(p).__name__}"
            )
    return {names[id(p)]: p for p in given}


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
    ) -> None:
        self._collectives, self._agreement, self._hold, self.absorb = collectives, agreement, hold, absorb

    @contextmanager
    def open(self, parameters: Mapping[str, nn.Parameter], *, write: bool) -> Iterator[None]:
        """Hold the parameters; with `write`, give every rank the values that rank 0 has at the end."""
        self.absorb()
        with ExitStack() as stack:
            stack.enter_context(self._hold(list(parameters.values())))
            if write:
                stack.enter_context(self._writing(parameters))
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
