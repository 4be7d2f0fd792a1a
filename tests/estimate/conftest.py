"""A rank that trains, with its memory by torch's allocator, and a process that simulates ranks."""

import gc
import itertools
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.conftest import one_thread
from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.estimate.simulate import simulate as simulated_step
from zbench.measure.clock import PhaseClock
from zbench.measure.memory import PeakMeter, allocator_meter
from zbench.measure.shim import SHIM
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import fork_server
from zbench.worker.loop import Trainer
from zbench.workloads import build_workload


class Simulated(NamedTuple):
    """The memory and the traffic of a step of one rank, by the simulation."""

    peak: int
    engine_bytes: dict[str, int]
    traffic: Any


Simulate = Callable[..., Simulated]
"""Simulates a rank (by default 0) of a trial."""


def simulated_rank(trial: TrialSpec, rank: int) -> Simulated:
    """Simulate a step of one rank."""
    torch.set_num_threads(1)
    step = simulated_step(trial, Path.cwd(), rank=rank)
    return Simulated(step.ledger.peak_of_both, dict(step.engine_bytes), step.traffic)


COLLECTIVES = "collectives"
"""What Sampler calls the backend's scratch."""


LOOKS = 3
"""At steps of torch's engines: gloo's threads let go of a finished collective's memory at any time."""


class Peaks:
    """The most that the allocator held: `whole` in all, `outside` of collectives, and where one began. A rank
    reads the others' memory in pieces, which a collective allocates and frees within itself.
    """

    def __init__(self, meter: PeakMeter) -> None:
        self._meter = meter
        self.whole = self.outside = self.at_collectives = 0

    def restart(self) -> None:
        """Begin anew."""
        self._meter.reset()
        self.whole = self.outside = self.at_collectives = 0

    def read(self) -> None:
        """Take in the bytes held since the last reading, outside of collectives."""
        self.outside = max(self.outside, self._meter.peak())
        self.whole = max(self.whole, self.outside)
        self._meter.reset()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """What is held inside counts for the whole only."""
        self.read()
        self.at_collectives = max(self.at_collectives, self._meter.live())
        yield
        self.whole = max(self.whole, self._meter.peak())
        self._meter.reset()


class Prompt:
    """Collectives that are over when they have been launched, so that no thread's pieces are in between."""

    def __init__(self, inner: Collectives, peaks: Peaks) -> None:
        self._inner, self._peaks = inner, peaks
        self.rank, self.world_size = inner.rank, inner.world_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        with self._peaks.collective():
            work = self._inner.reduce_scatter(send, out, tag)
            work.wait()
        return work

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        with self._peaks.collective():
            work = self._inner.all_gather(flat, tag)
            work.wait()
        return work


class PromptOperators(TorchDispatchMode):
    """The same of the collectives that torch's own engines call."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            out[-1].wait()
        return out


class Sampler(TorchDispatchMode):
    """Reads the allocator between operators: the peak without what kernels, and the backend of collectives,
    allocate for themselves.
    """

    def __init__(self, meter: PeakMeter) -> None:
        super().__init__()
        self.meter, self.peak, self._outside = meter, 0, 0
        self.scratch: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.meter.reset()
        before = self.meter.live()
        out = func(*args, **(kwargs or {}))
        after, most = self.meter.live(), self.meter.peak()
        if _is_in_collective():
            name = COLLECTIVES
            held = self._outside or before
        else:
            name = str(func)
            held = max(before, after)
            self._outside = after
            self.peak = max(self.peak, held)
        self.scratch[name] = max(self.scratch[name], most - held)
        return out


def _is_in_collective() -> bool:
    """Return whether torch's collectives call the operator, through the wrappers of a mode."""
    frames = itertools.islice(traceback.walk_stack(None), 8)
    return any(frame.f_code.co_filename == distributed_c10d.__file__ for frame, _ in frames)


def measure(group: Any, trial: dict[str, Any]) -> dict[str, Any]:
    """Return the peak of a step as the worker measures it (`outside`: without what collectives allocate for
    themselves), that of the next step between operators, the operators' scratch, and what the engine holds.
    """
    spec = TrialSpec.model_validate(trial)
    workload = build_workload(
        spec.workload, seed=spec.run.seed, world_size=spec.run.world_size, base_dir=Path.cwd()
    )
    gc.collect()
    assert SHIM is not None
    meter = allocator_meter(SHIM)
    peaks = Peaks(meter)
    trainer = Trainer(
        spec,
        workload,
        Path.cwd(),
        Instruments(wrap_collectives=lambda inner: Prompt(inner, peaks)),
        device=torch.device("cpu"),
        clock=PhaseClock(),
        group=group,
    )
    is_builtin = spec.engine.engine == "builtin"
    figures = {}
    looks = [Sampler(meter) for _ in range(1 if is_builtin else LOOKS)]
    with nullcontext() if is_builtin else PromptOperators():
        for step in range(2 + len(looks)):
            batches = trainer.batches(step)
            peaks.restart()
            if step >= 2 and spec.engine.compile == "off":  # under a mode, what is compiled would run eagerly
                with looks[step - 2]:
                    trainer.step(batches)
            else:
                trainer.step(batches)
            peaks.read()
            if step == 1:
                figures = {"peak": peaks.whole, "outside": peaks.outside}
            held = trainer.engine.memory_by_category()
            del batches
    trainer.engine.close()
    between = min(look.peak for look in looks)
    between = max(between, peaks.at_collectives)  # no operator runs between a resize and a collective
    scratch = {name: min(look.scratch[name] for look in looks) for name in looks[0].scratch}
    return figures | {"between": between, "held": held, "scratch": scratch}


__all__ = ["one_thread"]


@pytest.fixture(scope="package")
def simulate() -> Iterator[Simulate]:
    """Return a function that simulates a rank of a trial, in a process that has the compiler."""
    with ProcessPoolExecutor(1, mp_context=fork_server()) as process:
        yield lambda trial, rank=0: process.submit(simulated_rank, trial, rank).result()
