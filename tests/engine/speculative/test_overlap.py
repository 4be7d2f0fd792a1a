"""Updates really run while backward does: shown by when they ran, not by how long things took."""

import time

import pytest
import torch

from tests.engine.cases import when_backward_passes
from tests.engine.far_memory.cases import far
from tests.engine.far_memory.copies import Copies, FarMemory, LateCopy
from tests.engine.lattice import NO_CARD
from tests.engine.speculative.running import engine, layers, loss, schedule_of
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def test_subgroups_are_updated_before_backward_ends_with_clipping_configured() -> None:
    """Backward stops before its last layer until two subgroups have been updated, so it must be under it."""
    model = layers()
    with engine(model, gradient_clipping=1.0) as e:
        worker = schedule_of(e).worker
        passed: list[int] = []

        def wait_for_two() -> None:
            pending = list(worker.pending)
            assert len(pending) >= 2, "nothing was submitted under backward"
            deadline = time.monotonic() + 30
            while not all(worker._executor.done(update.ticket) for update in pending[:2]):
                assert time.monotonic() < deadline, "updates wait for the end of backward"
                time.sleep(0.001)
            passed.append(len({waiting.update.subgroup for waiting in pending[:2]}))

        model.between[0] = when_backward_passes(wait_for_two)
        e.backward(loss(model))
        e.step()
        assert passed == [2]


def test_a_bucket_has_one_gate_and_one_copy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many subgroups it has: each gate and each copy costs the thread that launches."""
    model = layers()
    copies = Copies(0)
    spec = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
    sizes = {"reduce_bucket_size": 8192, "sub_group_size": 512}
    built = build_engine(model, EngineSpec.model_validate(spec | sizes), instruments=far(copies, None))
    scheduled = schedule_of(built)
    back = list[int]()
    out = FarMemory.copy_out

    def copied(self: FarMemory, source: torch.Tensor, target: torch.Tensor) -> LateCopy:
        back.append(target.numel())
        return out(self, source, target)

    monkeypatch.setattr(FarMemory, "copy_out", copied)
    built.backward(loss(model))
    buckets = len(scheduled.subgroups)
    assert len({id(pending.gate) for pending in scheduled.worker.pending}) == buckets == 3
    assert len(scheduled.ahead) == sum(map(len, scheduled.subgroups)) > 10 * buckets
    built.step()
    assert back == [8192, 8192, 1024]
    built.close()
    assert not copies.close()


@pytest.mark.parametrize(("stage", "mode"), [(1, "micro_steps"), (3, "multi_backward")])
def test_a_parameter_frozen_between_steps_is_not_waited_for(stage: int, mode: str) -> None:
    """The last layer's gradients come first: buckets after it must not wait for what will not come."""
    model = layers()
    counts = []
    marks = {"last": True} if mode == "multi_backward" else {}
    with engine(model, zero_stage=stage, accumulation_mode=mode, reduce_bucket_size=5000) as e:
        scheduled = schedule_of(e)
        model.between[1] = when_backward_passes(lambda: counts.append(len(scheduled.ahead)))
        for step, frozen in enumerate((False, True, False)):
            for parameter in (model.layers[3].weight, model.layers[2].bias):
                parameter.requires_grad_(not frozen)
            e.backward(loss(model, step), **marks)
            assert not e.step().rolled_back
        state = e.state_dict()
    assert counts[0] == counts[2] > 0
    assert counts[1] > 0, "a frozen layer held up the others"
    assert [state[f"step.layers.{k}.weight"] for k in range(4)] == [3, 3, 3, 2]


@pytest.mark.cuda
@NO_CARD
def test_an_update_begins_while_the_compute_stream_is_busy() -> None:
    """The stream is kept busy after the first layers' gradients; their update ends before the stream does."""
    model = layers().cuda()
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
