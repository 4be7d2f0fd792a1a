"""The update worker: native threads that update during backward, and the handling of their failures."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch

from zbench import _native
from zbench._native import Gate, UpdateFailed, UpdateTimeout
from zbench.engine.protocols import Work
from zbench.engine.speculative.updates import Update
from zbench.engine.transport.works import WorkerThread


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update that was submitted. gate: opens when its gradients have arrived; None if they were there."""

    ticket: int
    update: Update
    scale: float
    gate: Gate | None

    @property
    def arrived(self) -> bool:
        """Whether its gradients are there, so that it may run."""
        return self.gate is None or self.gate.outcome() == ""


def patience(elements: int) -> float:
    """Return the seconds after which the next update counts as stuck; they grow with its size.

    One microsecond per element is a thousand times what an update takes.
    """
    return 30.0 + 1e-6 * elements


class UpdateWorker:
    """Runs updates in order of submission; `pending`: those that nobody has waited for yet.

    describe: names a subgroup in messages.
    """

    def __init__(
        self,
        threads: int,
        affinity: Sequence[int],
        describe: Callable[[int], str],
    ) -> None:
        self._executor = _native.Executor(threads, list(affinity))
        self._describe, self.patience = describe, patience
        self.pending: list[PendingUpdate] = []
        self._arrivals: WorkerThread | None = None

    def gate_behind(self, arrival: Work) -> Gate:
        """Return a gate for any number of updates, which opens when `arrival` is done."""
        gate = Gate()
        self._arrivals = self._arrivals or WorkerThread("arrivals")
        self._arrivals.submit(partial(_open_after, arrival, gate))
        return gate

    def submit(self, update: Update, scale: float, gate: Gate | None = None) -> None:
        """Queue an update of gradients times `scale`, which begins when `gate`, if given, is open."""
        if update.plan is None:
            return
        ticket = self._executor.submit(update.plan, scale, gate)
        self.pending.append(PendingUpdate(ticket, update, scale, gate))

    def collect(self) -> None:
        """Return when every update is done; the calling thread takes updates from the end of the queue.

        UpdateFailed and UpdateTimeout say which update failed, and where it was. After them, as after an
        interrupt, `drop` must be called.
        """
        pending = self.pending
        while pending and pending[-1].arrived and self._executor.cancel(pending[-1].ticket):
            self._run_here(pending[-1])
            pending.pop()
        while pending:
            self._wait(pending[0])

    def drop(self) -> None:
        """Discard every update; return when none runs. What they wrote is invalid."""
        for waited in self.pending:
            with suppress(ValueError):  # an interrupt came just after it was forgotten
                self._executor.cancel(waited.ticket)
        while self.pending:
            with suppress(UpdateFailed):
                self._wait(self.pending[0])

    def close(self) -> None:
        """End every thread; updates that have not begun are never run. May be called again.

        UpdateTimeout if what they wait for does not come.
        """
        self._executor.close()
        self.pending.clear()
        if self._arrivals is not None:
            if not self._arrivals.close(self.patience(0)):
                raise UpdateTimeout("gradients that were on their way to the host have not arrived")
            self._arrivals = None

    def _run_here(self, taken: PendingUpdate) -> None:
        with suppress(UpdateFailed):
            self._executor.wait(taken.ticket, 0.0)  # it was cancelled: the executor forgets it
        assert taken.update.plan is not None
        taken.update.plan.run(taken.scale, torch.get_num_threads())

    def _wait(self, waited: PendingUpdate) -> None:
        try:
            self._executor.wait(waited.ticket, self.patience(waited.update.elements))
        except UpdateTimeout as error:
            raise UpdateTimeout(f"{self._describe(waited.update.subgroup)}: {error}") from None
        except (UpdateFailed, ValueError) as error:
            self.pending.remove(waited)
            raise UpdateFailed(f"{self._describe(waited.update.subgroup)}: {error}") from None
        self.pending.remove(waited)


def _open_after(arrival: Work, gate: Gate) -> None:
    """Open the gate when `arrival` is done; fail it if that raises."""
    try:
        arrival.wait()
        gate.open()
    except BaseException as error:
        gate.fail(f"its gradients did not arrive: {error!r}")
