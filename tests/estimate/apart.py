"""Simulations in a fork of the nursery, which has imported the compiler so that test processes need not."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.engine.ranks import NURSERY
from zbench.estimate.simulate import simulate
from zbench.spec.trial import TrialSpec


class Simulated(NamedTuple):
    """What a step of one rank holds and sends."""

    peak: int
    engine_bytes: dict[str, int]
    traffic: Any


class Apart:
    """A process that simulates what it is asked."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def simulate(self, trial: TrialSpec, rank: int = 0) -> Simulated:
        """Return what `zbench.estimate.simulate` finds; AssertionError with its traceback where it fails."""
        self._pipe.send((trial.model_dump(mode="json"), rank))
        found = self._pipe.recv()
        assert isinstance(found, Simulated), found
        return found


@contextmanager
def simulating() -> Iterator[Apart]:
    """Fork one, and end it."""
    ((_, pipe),) = NURSERY[0].fork(1, _serve)
    yield Apart(pipe)
    pipe.close()


def _serve(pipe: Connection, *_: object) -> None:
    """Answer until the other end closes."""
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            trial, rank = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            os._exit(0)
        try:
            step = simulate(TrialSpec.model_validate(trial), Path.cwd(), rank=rank)
            pipe.send(Simulated(step.ledger.peak_of_both, dict(step.engine_bytes), step.traffic))
        except Exception:
            pipe.send(traceback.format_exc())
