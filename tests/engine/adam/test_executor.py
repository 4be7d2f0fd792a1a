"""Worker threads: same bits, honest timestamps, errors that say where, nothing left behind."""

import threading
import time

import pytest
import torch

from tests.engine.adam.cases import Case, results
from zbench.engine.adam import AdamExecutor, Gate, Hyper, NativeAdam, UpdateFailed, UpdateTimeout

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)


def test_the_bits_are_those_of_a_direct_call() -> None:
    cases = [Case(size, size, HYPER, grad_dtype=torch.bfloat16) for size in (1, 1000, 100_000)]
    pooled, direct = [case.task() for case in cases], [case.task() for case in cases]
    executor = AdamExecutor(2)
    started = time.monotonic_ns()
    completion = executor.wait(executor.submit(pooled, grad_scale=0.5))
    executor.close()
    NativeAdam().update(direct, grad_scale=0.5)
    for ours, theirs in zip(pooled, direct, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results(ours), results(theirs), strict=True))
    assert started <= completion.start_ns <= completion.end_ns <= time.monotonic_ns()


def test_a_shut_gate_holds_one_update_and_not_the_next() -> None:
    executor, gate = AdamExecutor(1), Gate()
    held = executor.submit([Case(100, 0, HYPER).task()], after=gate)
    free = executor.submit([Case(100, 1, HYPER).task()])
    executor.wait(free)
    assert not executor.done(held)
    with pytest.raises(UpdateTimeout, match=r"waiting for its gate to open \(1 tasks, 100 elements\)"):
        executor.wait(held, timeout=0.01)
    threading.Timer(0.02, gate.open).start()
    executor.wait(held)
    executor.close()


def test_failures_reach_the_waiter() -> None:
    executor, gate = AdamExecutor(1), Gate()
    failed = executor.submit([Case(100, 0, HYPER).task()], after=gate)
    gate.fail("the gradient copy was lost")
    with pytest.raises(UpdateFailed, match="the gradient copy was lost"):
        executor.wait(failed)
    cancelled = executor.submit([Case(100, 0, HYPER).task()], after=Gate())
    assert executor.cancel(cancelled)
    with pytest.raises(UpdateFailed, match="cancelled"):
        executor.wait(cancelled)
    pending = executor.submit([Case(100, 0, HYPER).task()], after=Gate())
    executor.close()
    with pytest.raises(UpdateFailed, match="closed before it began"):
        executor.wait(pending)
    with pytest.raises(UpdateFailed, match="closed"):
        executor.submit([Case(100, 0, HYPER).task()])
    executor.close()


def test_a_bad_processor_is_refused() -> None:
    with pytest.raises(ValueError, match="affinity"):
        AdamExecutor(1, [100_000])
    with pytest.raises(ValueError, match="threads"):
        AdamExecutor(0)
