"""Taken-back steps leave every bit as it was, whatever the gradients held."""

import pytest
import torch

from tests.engine.adam.cases import Case, bits
from zbench.engine.adam import (
    AdamTask,
    DoubleBuffer,
    Hyper,
    Journal,
    NativeAdam,
    Rollback,
    Slot,
    journal_bytes,
)
from zbench.engine.adam.rollback import slot_tensors

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)


def snapshot(slot: Slot) -> list[torch.Tensor]:
    return [bits(tensor).clone() for tensor in slot_tensors(slot)]


def tasks(moments: torch.dtype, amsgrad: bool) -> list[AdamTask]:
    cases = [Case(1000 + i, i, HYPER, 3, moment_dtype=moments, amsgrad=amsgrad) for i in range(3)]
    return [case.task() for case in cases]


def rollbacks(slots: list[Slot]) -> list[Rollback]:
    return [DoubleBuffer(slots), Journal(journal_bytes(slots))]


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("poison", [None, torch.inf, torch.nan, 1e-41])
def test_rollback_restores_and_commit_keeps(
    moments: torch.dtype, amsgrad: bool, poison: float | None
) -> None:
    for kind in range(2):
        speculative, plain = tasks(moments, amsgrad), tasks(moments, amsgrad)
        rollback = rollbacks([task.slot for task in speculative])[kind]
        before = [snapshot(task.slot) for task in speculative]
        if poison is not None:
            speculative[1].grad.fill_(poison)
            plain[1].grad.fill_(poison)
        for commits in (False, True):
            prepared = [rollback.prepare(task) for task in speculative]
            NativeAdam().update([task for task in prepared if task is not None])
            rollback.commit() if commits else rollback.rollback()
            if not commits:
                after = [snapshot(task.slot) for task in speculative]
                assert all(
                    torch.equal(a, b)
                    for x, y in zip(before, after, strict=True)
                    for a, b in zip(x, y, strict=True)
                )
        NativeAdam().update(plain)
        for ours, theirs in zip(speculative, plain, strict=True):
            assert all(
                torch.equal(a, b) for a, b in zip(snapshot(ours.slot), snapshot(theirs.slot), strict=True)
            )


def test_a_full_journal_refuses_and_still_restores_what_it_took() -> None:
    first, second, _ = tasks(torch.float32, False)
    journal = Journal(journal_bytes([first.slot]))
    before = snapshot(first.slot)
    assert journal.prepare(first) is first
    assert journal.prepare(second) is None
    NativeAdam().update([first])
    journal.rollback()
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(first.slot), strict=True))
    assert journal.prepare(second) is None or journal_bytes([second.slot]) <= journal_bytes([first.slot])
