"""On a GPU: page-locked buffers, updates behind the copy's event, state shared out, and the same bits."""

import time
from mmap import PAGESIZE
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.cases import when_backward_passes
from tests.engine.plain import assert_same
from tests.engine.speculative.running import Layers, bits, engine, layers, schedule_of
from zbench.engine.adam import cuda_unavailable_reason

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available() or cuda_unavailable_reason() is not None, reason="needs a CUDA device"
    ),
]
ELEMENTS = 4 * (64 * 64 + 256)


def on_gpu() -> Layers:
    return layers().cuda()


def loss(model: Layers, step: int) -> Tensor:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).cuda().requires_grad_()
    return model(x.to(model.layers[0].weight.dtype)).float().square().mean()


def five_steps(**options: Any) -> tuple[dict[str, Tensor], dict[str, int]]:
    model = on_gpu()
    with engine(model, **options) as e:
        for step in range(5):
            e.backward(loss(model, step) * (20.0 if step % 2 else 1.0))
            e.step()
        return {k: v.cpu() for k, v in bits(e).items()}, e.memory_by_category()


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rollback", ["double_buffer", "journal"])
@pytest.mark.parametrize("ratio", [0.4, 1.0])
def test_bits_and_memory(stage: int, dtype: str, rollback: str, ratio: float) -> None:
    """No offload, after_backward and speculative agree; what the device holds follows from the ratio."""
    common: dict[str, Any] = {"zero_stage": stage, "dtype": dtype, "gradient_clipping": 0.1}
    state, held = five_steps(**common, rollback=rollback, offload_ratio=ratio)
    after, _ = five_steps(**common, offload_schedule="after_backward")
    none, _ = five_steps(**common, offload_optimizer="none", offload_schedule="after_backward")
    assert_same(state, after)
    assert_same(state, none)
    host = round(ratio * ELEMENTS / 256) * 256
    assert held.get("host_moments", 0) == 2 * -(-4 * host // PAGESIZE) * PAGESIZE
    assert held.get("moments", 0) == 8 * (ELEMENTS - host)


@pytest.mark.parametrize("ratio", [0.4, 1.0])
def test_what_copies_touch_on_the_host_is_page_locked(ratio: float) -> None:
    model = on_gpu()
    with engine(model, dtype="bfloat16", offload_ratio=ratio) as e:
        optimizer = e.checked_state().optimizer
        buffers = [optimizer.gradients, *optimizer.moments.buffers]
        flats = [flat for buffer in buffers for flat in buffer.flats]
        flats += [flat for masters in optimizer.masters for flat in masters.flats]
        for flat in flats:
            assert flat.buffers[0].is_cuda != flat.buffers[0].is_pinned()
        run = optimizer.runs(optimizer.shard.segments)[0]
        other = schedule_of(e).updates.rollback.other
        assert other(run.slot.param).is_pinned()
        assert run.out is not None
        assert run.out.is_pinned()


def test_an_update_begins_behind_its_copy_while_the_compute_stream_is_busy() -> None:
    """The stream is kept busy after the first layers' gradients; their update ends before the stream does."""
    model = on_gpu()
    with engine(model) as e:
        e.backward(loss(model, 0))
        e.step()
        worker = schedule_of(e).worker
        overlapped: list[bool] = []

        def keep_busy() -> None:
            torch.cuda._sleep(2_000_000_000)  # about a second
            pending = worker.pending[0]
            deadline = time.monotonic() + 120
            while not worker._executor.done(pending.ticket):
                assert time.monotonic() < deadline, "the update waits for the compute stream"
                time.sleep(0.001)
            overlapped.append(not torch.cuda.current_stream().query())

        model.between[2] = when_backward_passes(keep_busy)
        e.backward(loss(model, 1))
        e.step()
        assert overlapped == [True]
