"""The work of a simulated step is that of the real operators."""

from pathlib import Path

import torch

from zbench.engine.adam.native import native_call
from zbench.estimate.counting import WorkCounter
from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.result import Product, StepWork
from zbench.estimate.simulate import simulate
from zbench.spec.trial import TrialSpec


class Counting(AllocationLedger):  # type: ignore[misc]
    """A ledger over real tensors that counts their work, too. host: tensors that lie there."""

    def __init__(self, host: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        super().__init__()
        self.work = WorkCounter(lambda tensor: tensor.data_ptr() in host)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.work.note(func, args, kwargs or {}, out)
        return out


def work_of(step, host: set[int] = frozenset()) -> StepWork:  # type: ignore[no-untyped-def, assignment]
    counting = Counting(host)
    with counting.watching():
        step()
    return counting.work.take()


def test_a_product_has_its_operations_and_all_its_bytes() -> None:
    a, b = torch.ones(8, 16), torch.ones(16, 4)
    assert work_of(lambda: a @ b).products == [Product(2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4), 1)]


def test_attention_with_a_causal_mask_has_half_the_operations() -> None:
    q, k, v = torch.ones(3, 1, 2, 32, 8).unbind()

    def attend(*, is_causal: bool) -> float:
        work = work_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal))
        return sum(each.flops for each in work.products)

    assert attend(is_causal=False) == 2 * 2 * 2 * 32 * 32 * 8
    assert attend(is_causal=True) == attend(is_causal=False) / 2


def test_views_touch_nothing_and_sums_read_and_write() -> None:
    x = torch.ones(100)
    assert work_of(lambda: x.view(10, 10)[2:4]) == StepWork(operators=2)
    assert work_of(lambda: x.add(1.0)) == StepWork(operators=1, streamed_bytes=2 * x.nbytes)
    assert work_of(lambda: x.zero_()) == StepWork(operators=1, streamed_bytes=x.nbytes)
    chosen = torch.tensor([3, 4])
    assert work_of(lambda: x[chosen]).streamed_bytes == 2 * 2 * 4, "what is chosen, not all"
    assert work_of(lambda: torch.empty(9)).streamed_bytes == 0


def test_copies_between_device_and_host_are_counted_once() -> None:
    near, far = torch.ones(50), torch.ones(50)
    host = {far.data_ptr()}
    for there, here in ((near, far), (far, near)):
        assert work_of(lambda a=there, b=here: a.copy_(b), host) == StepWork(1, copied_bytes=200)
    assert work_of(lambda: near.copy_(near), host) == StepWork(1, streamed_bytes=400)
    assert work_of(lambda: far.copy_(far), host) == StepWork(1, host_bytes=400)


def test_an_update_reads_gradients_and_writes_the_rest() -> None:
    """Seven quarters of its tensors; beside offloaded state the rest crosses the link instead."""
    near, far = torch.ones(8), torch.ones(16)
    for tensors, expected in (
        ([near, near], StepWork(1, streamed_bytes=112)),
        ([far, far], StepWork(1, host_bytes=224)),
        ([near, far], StepWork(1, host_bytes=112, copied_bytes=32)),
    ):
        counter = WorkCounter(lambda tensor: tensor is far)
        counter.note(native_call, (tensors,), {}, None)
        assert counter.take() == expected


def trial(**engine: object) -> TrialSpec:
    workload = {"options": {"layers": 2, "width": 32, "heads": 2}, "sequence_length": 16}
    return TrialSpec.model_validate({"workload": workload, "run": {"world_size": 8}, "engine": engine})


def test_offloaded_state_is_updated_on_the_host() -> None:
    step = simulate(trial(zero_stage=2, offload_optimizer="cpu"), Path.cwd())
    twice = simulate(trial(zero_stage=2, gradient_accumulation_steps=2), Path.cwd())
    assert twice.flops == 2 * (step.flops or 0)
    flops = sum(each.flops * each.count for each in step.work.products)
    assert step.flops is not None
    assert 0.8 * step.flops < flops <= step.flops  # `flops` counts attention whole
    moments = step.engine_bytes["host_moments"]
    assert step.work.host_bytes == moments / 8 * 28  # bytes of an element: 16 read, 12 written
    assert step.work.copied_bytes > 0
    near = simulate(trial(zero_stage=2), Path.cwd()).work
    assert (near.host_bytes, near.copied_bytes) == (0, 0)
    assert near.products == step.work.products
