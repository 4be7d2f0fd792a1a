"""What an update ahead wrote is forgotten or kept to the bit, whatever the gradients held."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.engine.adam.cases import Case, bits
from zbench.engine.adam import AdamTask, Hyper, NativeAdam, Slot
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.speculative.rollback import DoubleBuffer, Journal, Rollback, RollbackTarget

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)


class Box:
    """Keeps one flat buffer."""

    memory = DeviceMemory(torch.device("cpu"))

    def __init__(self, buffer: Tensor) -> None:
        self.buffers = [buffer]


def written(task: AdamTask) -> list[Tensor]:
    slot = task.slot
    tensors = (slot.param, slot.exp_avg, slot.exp_avg_sq, slot.max_exp_avg_sq)
    return [tensor for tensor in tensors if tensor is not None]


def poisoned(value: float | None, case: Case) -> AdamTask:
    task = case.task()
    if value is not None:
        task.grad.fill_(value)
    return task


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("poison", [None, torch.inf, torch.nan, 1e-41])
@pytest.mark.parametrize("kind", ["double buffer", "journal"])
def test_an_update_ahead_is_forgotten_and_then_kept(
    moments: torch.dtype, amsgrad: bool, poison: float | None, kind: str
) -> None:
    case = Case(1000, 7, HYPER, 3, moment_dtype=moments, amsgrad=amsgrad)
    task, plain = poisoned(poison, case), poisoned(poison, case)
    views = written(task)
    boxes = [Box(view) for view in views]
    held = [RollbackTarget(box, "host_speculative") for box in boxes]
    rollback: Rollback = DoubleBuffer(held, []) if kind == "double buffer" else Journal(held, views)
    ahead = replace(task, into=Slot(*map(rollback.other, views)))

    before = [bits(view).clone() for view in views]
    NativeAdam().update([ahead])
    assert all(torch.equal(bits(b.buffers[0]), was) for b, was in zip(boxes, before, strict=True))
    NativeAdam().update([ahead])
    rollback.commit(views)
    NativeAdam().update([plain])
    expected = [bits(view) for view in written(plain)]
    assert all(torch.equal(bits(b.buffers[0]), new) for b, new in zip(boxes, expected, strict=True))
