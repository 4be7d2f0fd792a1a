"""What goes wrong reaches the caller, says where, leaves the previous step's bits, and leaves no thread."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from tests.engine.cases import when_backward_passes
from tests.engine.plain import assert_same
from tests.engine.speculative.running import (
    after_a_step,
    bits,
    engine,
    layers,
    loss,
    schedule_of,
    threads,
    threads_left,
)
from zbench._native import Gate, UpdateFailed, UpdateTimeout
from zbench.engine import Engine
from zbench.engine.engine import uninterrupted
from zbench.engine.protocols import Work
from zbench.engine.speculative.updates import Update


class Arrival:
    """A copy that arrives when the test says so, or fails."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        self.arrived.wait(60)
        if self.error is not None:
            raise self.error

    def is_completed(self) -> bool:
        return self.arrived.is_set()


def slow_bucket(built: Engine, index: int, arrival: Work) -> None:
    """Let the next update of each subgroup of bucket `index` wait for `arrival`."""
    scheduled = schedule_of(built)
    slow = {subgroup.index for subgroup in scheduled.subgroups[index]}
    submit = scheduled.worker.submit

    def submitted(update: Update, scale: float, was: Gate | None = None) -> None:
        waits = update.subgroup in slow
        slow.discard(update.subgroup)
        submit(update, scale, scheduled.worker.gate_behind(arrival) if waits else was)

    scheduled.worker.submit = submitted  # type: ignore[method-assign]


def expected(steps: int) -> dict[str, Any]:
    """Return the bits of an undisturbed run."""
    model = layers()
    with engine(model) as e:
        for step in range(steps):
            e.backward(loss(model, step))
            e.step()
        return bits(e)


def test_a_worker_that_is_stuck_is_reported_with_its_place() -> None:
    with after_a_step() as (model, e, before):
        arrival = Arrival()
        slow_bucket(e, 2, arrival)
        assert schedule_of(e).worker.patience(1 << 30) < 3600.0
        schedule_of(e).worker.patience = lambda elements: 0.1
        e.backward(loss(model, 1))
        with pytest.raises(
            UpdateTimeout,
            match=r"subgroup \d+ \(layers.2.weight to layers.1.weight\): .*waiting for its gate",
        ):
            e.step()
        assert_same(before, bits(e))
        arrival.arrived.set()
        e.step()
        assert_same(bits(e), expected(2))


def test_a_failed_worker_is_reported_and_the_step_taken_again() -> None:
    with after_a_step() as (model, e, before):
        arrival = Arrival()
        arrival.error = OSError("bus gone")
        arrival.arrived.set()
        slow_bucket(e, 1, arrival)
        e.backward(loss(model, 1))
        with pytest.raises(UpdateFailed, match=r"subgroup .*layers.2.*bus gone"):
            e.step()
        assert_same(before, bits(e))
        e.step()
        assert_same(bits(e), expected(2))


def test_ctrl_c_in_backward_settles_everything() -> None:
    with after_a_step() as (model, e, before):
        model.between[1] = when_backward_passes(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            e.backward(loss(model, 1))
        assert not schedule_of(e).worker.pending
        assert_same(before, bits(e))
        model.between.clear()
        e.backward(loss(model, 1))
        e.step()
        assert_same(bits(e), expected(2))


def test_a_second_ctrl_c_while_step_waits_changes_nothing() -> None:
    """The first one waits for the step's end, so that all ranks take it or none; this step never ends."""
    with after_a_step() as (model, e, before):
        arrival = Arrival()
        slow_bucket(e, 0, arrival)
        e.backward(loss(model, 1))
        for seconds in (0.2, 0.4):
            threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            e.step()
        assert_same(before, bits(e))
        arrival.arrived.set()
        e.step()
        assert_same(bits(e), expected(2))


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_in_a_commit_is_raised_at_its_end(fails: bool) -> None:
    done = []

    def commit() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append(True)
            if fails:
                raise MemoryError
        done.append(False)

    with pytest.raises(KeyboardInterrupt):
        commit()
    assert done == [True]


def test_close_in_the_middle_of_a_step_leaves_no_thread() -> None:
    before = threads()
    model = layers()
    with engine(model, optimizer_threads=3) as e:
        arrival = Arrival()
        slow_bucket(e, 1, arrival)
        e.backward(loss(model))
        names = {thread.name for thread in threading.enumerate()}
        assert "zbench arrivals" in names
        assert len(threads() - before) >= 4
        arrival.arrived.set()
        e.close()
        e.close()
    assert not threads_left(before)
