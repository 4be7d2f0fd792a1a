"""Steps that can be taken back, bit for bit: a double buffer (no extra traffic) or a journal (less memory).

Before an update that may have to be undone, `prepare` turns its task into one that leaves the old bits
somewhere. Afterwards `commit` keeps the new state and `rollback` the old one, whatever the gradients held.
The state of a slot is what its `Slot` object refers to at the time: a commit of the double buffer exchanges
its tensors.

`param_out` is not covered: it is a copy of the parameters, and its reader decides when it may change.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.adam.contract import AdamTask, Slot


class Rollback(Protocol):
    """How speculative updates are undone. One thread calls; a slot is prepared once before an outcome."""

    def prepare(self, task: AdamTask) -> AdamTask | None:
        """Return the task to run instead, or None if there is no room: then run it once it is certain."""
        ...

    def commit(self) -> None:
        """Make the results of all prepared tasks, which have run, the state."""
        ...

    def rollback(self) -> None:
        """Give all prepared tasks' slots the bits they had when prepared; the tasks may have run or not."""
        ...


def slot_tensors(slot: Slot) -> list[Tensor]:
    """Return the slot's tensors, three or four of them."""
    tensors = [slot.param, slot.exp_avg, slot.exp_avg_sq]
    return tensors if slot.max_exp_avg_sq is None else [*tensors, slot.max_exp_avg_sq]


class DoubleBuffer:
    """A second half for every slot: the update reads one and writes the other. Commit is an exchange.

    Costs as much memory as the slots (12 bytes an element in float32) and no memory traffic.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._halves = {id(slot): (slot, _like(slot)) for slot in slots}
        self._pending: list[tuple[Slot, Slot]] = []

    def prepare(self, task: AdamTask) -> AdamTask:
        """Return the task with `into` set to the slot's other half; KeyError for a slot that has none."""
        slot, other = self._halves[id(task.slot)]
        self._pending.append((slot, other))
        return dataclasses.replace(task, into=other)

    def commit(self) -> None:
        """Exchange the halves of every prepared slot."""
        for slot, other in self._pending:
            for field in dataclasses.fields(Slot):
                mine, theirs = getattr(slot, field.name), getattr(other, field.name)
                setattr(slot, field.name, theirs)
                setattr(other, field.name, mine)
        self._pending.clear()

    def rollback(self) -> None:
        """Do nothing: the old half was never written."""
        self._pending.clear()


class Journal:
    """Copies of prepared slots, within a fixed number of bytes; updates run in place.

    Costs `capacity` bytes, and one more copy of what is prepared. Slots that no longer fit are refused by
    `prepare`, and are to be updated when the step is certain.
    """

    def __init__(self, capacity: int) -> None:
        self._arena = torch.empty(capacity, dtype=torch.uint8)
        self._used = 0
        self._entries: list[tuple[Tensor, Tensor]] = []  # (tensor, copy of its bits)

    def prepare(self, task: AdamTask) -> AdamTask | None:
        """Copy the slot and return the task as it is, or None where the copy would not fit."""
        tensors = slot_tensors(task.slot)
        if self._used + sum(map(_room, tensors)) > self._arena.numel():
            return None
        for tensor in tensors:
            copy = self._arena[self._used : self._used + tensor.nbytes].view(tensor.dtype)
            copy.copy_(tensor)
            self._entries.append((tensor, copy))
            self._used += _room(tensor)
        return task

    def commit(self) -> None:
        """Forget the copies."""
        self._entries.clear()
        self._used = 0

    def rollback(self) -> None:
        """Copy the old bits back."""
        for tensor, copy in self._entries:
            tensor.copy_(copy)
        self.commit()


def journal_bytes(slots: Sequence[Slot]) -> int:
    """Return the capacity that lets a Journal hold all these slots at once."""
    return sum(_room(tensor) for slot in slots for tensor in slot_tensors(slot))


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // 64) * 64


def _like(slot: Slot) -> Slot:
    greatest = None if slot.max_exp_avg_sq is None else torch.empty_like(slot.max_exp_avg_sq)
    return Slot(
        torch.empty_like(slot.param),
        torch.empty_like(slot.exp_avg),
        torch.empty_like(slot.exp_avg_sq),
        greatest,
    )
