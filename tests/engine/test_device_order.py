"""What orders a device's streams is called where it must be; `far_memory` shows that it orders them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.lattice import ROWS, row_id
from zbench.engine import build_engine
from zbench.engine.gradients.bucket import Buckets
from zbench.engine.memory import buffers
from zbench.engine.memory.kinds import DeviceMemory, Filled, GradientStream
from zbench.engine.parameters import sharded
from zbench.engine.partition import Extent
from zbench.spec.engine import EngineSpec

STAGE_3: dict[str, Any] = {"zero_stage": 3, "param_persistence_threshold": 0}


class Twice(nn.Module):
    """Reads one weight twice, as the branches of a model do that compute on two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight @ self.weight


def take_a_step_of_two_backwards(**spec: Any) -> None:
    keys = {"gradient_accumulation_steps": 2, **spec}
    engine = build_engine(nn.Sequential(Twice(), nn.Linear(8, 4)), EngineSpec.model_validate(keys))
    try:
        for _ in range(2):
            engine.backward(engine.model(torch.ones(2, 8)).square().mean())
        engine.step()
    finally:
        engine.close()


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_gradients_are_written_to_buckets_on_one_stream(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[Tensor] = []
    written: list[int] = []
    write = Buckets.write

    @contextmanager
    def behind(self: GradientStream, gradient: Tensor) -> Iterator[None]:
        there.append(gradient)
        yield
        there.pop()

    def seen(self: Buckets, index: int, gradient: Tensor) -> None:
        assert gradient.untyped_storage().data_ptr() == there[-1].untyped_storage().data_ptr()
        written.append(index)
        write(self, index, gradient)

    monkeypatch.setattr(GradientStream, "behind", behind)
    monkeypatch.setattr(Buckets, "write", seen)
    take_a_step_of_two_backwards(**row)
    assert len(written) == 2 * 3


def test_weights_are_read_behind_their_gather_at_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Filled] = []
    monkeypatch.setattr(Filled, "read_here", lambda self: read.append(self))
    take_a_step_of_two_backwards(**STAGE_3)
    assert len(read) >= 2 * 2, "each forward reads the weight twice"


def test_memory_is_freed_behind_the_stream_that_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    for user in (sharded, buffers):
        monkeypatch.setattr(
            user, "used_on_current_stream", lambda t: used.append(t.untyped_storage().nbytes())
        )
    take_a_step_of_two_backwards(**STAGE_3)
    assert len(used) >= 2 * 2, "the weights of each of two groups, in each backward"
    buffers.FlatBuffer(DeviceMemory(torch.device("cpu")), [Extent(0, 4)], torch.float32).release()
    assert used[-1] == 16
    assert all(used), "before the memory is gone"
