"""The Adam of a CUDA device without our kernels: torch's own, held to the contract on the CPU."""

from dataclasses import replace

import pytest
import torch

from tests.engine.adam.cases import FLOATS, assorted, written
from tests.engine.plain import bits
from zbench.engine.adam import NativeAdam, TorchFusedAdam


@pytest.mark.parametrize("moments", FLOATS[:2])
@pytest.mark.parametrize("grads", FLOATS)
def test_it_returns_the_contracts_bits(grads: torch.dtype, moments: torch.dtype) -> None:
    sizes = (256, 4096, 512)  # only of multiples of 16 are torch's bits the contract's
    cases = [replace(case, rounding_seed=None) for case in assorted(grads, moments, sizes)]
    ours, theirs = ([case.task() for case in cases] for _ in range(2))
    NativeAdam().update(ours, grad_scale=0.37)
    TorchFusedAdam().update(theirs, grad_scale=0.37)
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for left, right in zip(written(mine), written(other), strict=True):
            same = (bits(left) == bits(right)) | (left.isnan() & right.isnan())  # a NaN keeps its payload
            assert bool(same.all()), f"task {index}: {cases[index]}"
