"""The Adam of a CUDA device without our kernels: torch's own, held to the contract on the CPU."""

import itertools

import pytest
import torch

from tests.engine.adam.cases import FLOATS, Case, bits, written
from zbench.engine.adam import Hyper, NativeAdam, TorchFusedAdam, cuda_adam, cuda_unavailable_reason

HYPERS = (
    Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01),
    Hyper(1e-2, 0.0, 0.95, 1e-3, 0.0, decoupled=False),
    Hyper(0.1, 0.3, 0.5, 1e-8, 0.3, bias_correction=False, decoupled=False),
)


def cases(grads: torch.dtype, moments: torch.dtype) -> list[Case]:
    """Multiples of 16 elements: only there are the bits of torch's CPU kernel the contract's."""
    return [
        Case(
            numel,
            seed,
            HYPERS[seed % 3],
            step=1 + seed,
            grad_dtype=grads,
            moment_dtype=moments,
            out_dtype=(None, *FLOATS)[seed % 4],
            amsgrad=amsgrad,
            buffered=buffered,
            rounding_seed=9 if seed % 2 and moments is torch.bfloat16 else None,
        )
        for seed, (numel, amsgrad, buffered) in enumerate(
            itertools.product((256, 4096), (False, True), (False, True))
        )
    ]


@pytest.mark.parametrize("moments", FLOATS[:2])
@pytest.mark.parametrize("grads", FLOATS)
def test_it_returns_the_contracts_bits(grads: torch.dtype, moments: torch.dtype) -> None:
    ours, theirs = ([case.task() for case in cases(grads, moments)] for _ in range(2))
    count, their_count = (torch.zeros(1, dtype=torch.int64) for _ in range(2))
    NativeAdam().update(ours, grad_scale=0.37, nonfinite=count)
    TorchFusedAdam().update(theirs, grad_scale=0.37, nonfinite=their_count)
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for left, right in zip(written(mine), written(other), strict=True):
            same = (bits(left) == bits(right)) | (left.isnan() & right.isnan())  # a NaN keeps its payload
            assert bool(same.all()), f"task {index}: {cases(grads, moments)[index]}"
    assert count.item() == their_count.item() > 0


def test_a_wrong_task_is_refused_before_anything_is_written() -> None:
    good, bad = Case(256, 1, HYPERS[0]).task(), Case(256, 2, HYPERS[0], step=0).task()
    before = bits(good.slot.param).clone()
    with pytest.raises(ValueError, match=r"tasks\[1\].step"):
        TorchFusedAdam().update([good, bad])
    assert torch.equal(bits(good.slot.param), before)


@pytest.mark.skipif(cuda_unavailable_reason() is None, reason="the CUDA kernels can be used here")
def test_without_our_kernels_a_cuda_device_gets_torchs() -> None:
    assert isinstance(cuda_adam(), TorchFusedAdam)
