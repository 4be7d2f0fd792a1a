"""Native worker threads: gates, errors that say where, nothing left behind."""

import threading
from collections.abc import Iterator

import pytest

from tests.engine.adam.cases import Case
from zbench._native import Executor, Gate, Plan, UpdateFailed, UpdateTimeout
from zbench.engine.adam import AdamTask, Hyper
from zbench.engine.adam.native import build_plan

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = Executor(1, [])
    yield executor
    executor.close()


@pytest.fixture
def task() -> AdamTask:
    return Case(100, 0, HYPER).task()


@pytest.fixture
def plan(task: AdamTask) -> Plan:
    return build_plan([task])


def test_a_shut_gate_holds_one_update_and_not_the_next(executor: Executor, plan: Plan) -> None:
    gate = Gate()
    other = Case(100, 1, HYPER).task()
    held = executor.submit(plan, 1.0, gate)
    free = executor.submit(build_plan([other]), 1.0, None)
    executor.wait(free, None)
    assert not executor.done(held)
    with pytest.raises(UpdateTimeout, match=r"waiting for its gate to open \(1 tasks, 100 elements\)"):
        executor.wait(held, 0.01)
    threading.Timer(0.02, gate.open).start()
    executor.wait(held, None)


def test_failures_reach_the_waiter(executor: Executor, plan: Plan) -> None:
    gate = Gate()
    failed = executor.submit(plan, 1.0, gate)
    gate.fail("the gradient copy was lost")
    with pytest.raises(UpdateFailed, match="the gradient copy was lost"):
        executor.wait(failed, None)
    cancelled = executor.submit(plan, 1.0, Gate())
    assert executor.cancel(cancelled)
    with pytest.raises(UpdateFailed, match="cancelled"):
        executor.wait(cancelled, None)
    pending = executor.submit(plan, 1.0, Gate())
    executor.close()
    with pytest.raises(UpdateFailed, match="closed before it began"):
        executor.wait(pending, None)
