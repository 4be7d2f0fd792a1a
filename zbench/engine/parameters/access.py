"""Reading and writing whole parameters from outside: `engine.gathered`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from zbench.engine.protocols import Collectives, Tag
from zbench.errors import UsageError

_OUTCOME = Tag("whether gathered(write=True) ended well")


def parameters_of(
    model: nn.Module, what: nn.Module | nn.Parameter | Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Return the parameters that are meant, each once; UsageError for one that is not the model's."""
    if isinstance(what, nn.Module):
        given = list(what.parameters())
    else:
        given = [what] if isinstance(what, nn.Parameter) else list(what)
    known = {id(p) for p in model.parameters()}
    for p in given:
        if id(p) not in known:
            raise UsageError(
                "gathered: expected a module of the engine's model, or parameters of it, got"
                f" {'a parameter of something else' if isinstance(p, nn.Parameter) else type(p).__name__}"
            )
    return list({id(p): p for p in given}.values())


class Access:
    """Makes parameters whole for a while: `hold` returns what keeps them so, `absorb` takes changes over.

    An edit in a context for reading counts as any other edit between steps: every rank must make it alike.
    """

    def __init__(
        self,
        collectives: Collectives,
        hold: Callable[[Sequence[nn.Parameter]], AbstractContextManager[None]],
        absorb: Callable[[], None],
    ) -> None:
        self._collectives, self._hold, self.absorb = collectives, hold, absorb

    @contextmanager
    def open(self, parameters: Sequence[nn.Parameter], *, write: bool) -> Iterator[None]:
        """Hold the parameters; with `write`, give every rank the values that rank 0 has at the end."""
        self.absorb()
        with ExitStack() as stack:
            stack.enter_context(self._hold(parameters))
            if write:
                stack.enter_context(self._writing(parameters))
            yield

    @contextmanager
    def _writing(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        before = [p.detach().clone() for p in parameters]
        try:
            yield
        except BaseException:
            self._restore(parameters, before)
            self._failures(mine=True)
            raise
        failed = self._failures(mine=False)
        if failed:
            self._restore(parameters, before)
            raise UsageError(
                f"gathered(write=True): nothing was written, because rank {failed[0]} raised inside the"
                " context; see that rank's error"
            )
        with torch.no_grad():
            for p in parameters:
                values = p.detach().contiguous()
                self._collectives.broadcast(values, 0).wait()
                p.copy_(values)
        self.absorb()

    def _failures(self, *, mine: bool) -> list[int]:
        flags = self._collectives.all_gather_small(torch.tensor([float(mine)], dtype=torch.float64), _OUTCOME)
        return [rank for rank, flag in enumerate(flags.reshape(-1).tolist()) if flag]

    @staticmethod
    @torch.no_grad()
    def _restore(parameters: Sequence[nn.Parameter], before: Sequence[Tensor]) -> None:
        for p, values in zip(parameters, before, strict=True):
            p.copy_(values)
