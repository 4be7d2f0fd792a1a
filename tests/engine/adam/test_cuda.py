"""The CUDA kernels' bits: compiled for the host and, where there is one, on a device."""

import dataclasses

import pytest
import torch

from tests.engine.adam.cases import FLOATS, HYPERS, Case, assorted, results
from tests.engine.adam.host_kernels import COMPILER, HostKernels
from tests.engine.adam.test_exact_sum import exact
from tests.engine.lattice import NO_CARD
from zbench.engine import adam
from zbench.engine.adam.exact_sum import exact_zero

PLACES = [
    pytest.param("host", marks=pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")),
    pytest.param("cuda", marks=[pytest.mark.cuda, NO_CARD]),
]


def backend_on(place: str) -> adam.AdamBackend:
    """Return the CUDA kernels, or the same compiled for the host."""
    return {"cuda": adam.CudaAdam, "host": HostKernels}[place]()


def device(place: str) -> str:
    return "cuda" if place == "cuda" else "cpu"


def cases(grads: torch.dtype, moments: torch.dtype) -> list[Case]:
    """Sizes around a block's, aligned and not."""
    return assorted(grads, moments, (1, 255, 4096, 100_003), shifts=(0, 3))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("moments", FLOATS[:2])
@pytest.mark.parametrize("grads", FLOATS)
def test_one_call_returns_the_cpus_bits(place: str, grads: torch.dtype, moments: torch.dtype) -> None:
    ours = [case.task() for case in cases(grads, moments)]
    theirs = [dataclasses.replace(case, device=device(place)).task() for case in cases(grads, moments)]
    adam.NativeAdam().update(ours, grad_scale=0.37)
    backend_on(place).update(theirs, grad_scale=0.37)
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for left, right in zip(results(mine), results(other), strict=True):
            assert torch.equal(left, right.cpu()), f"task {index}: {cases(grads, moments)[index]}"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_square_sums_are_the_cpus(place: str, dtype: torch.dtype) -> None:
    grads = [Case(numel, numel, HYPERS[0], grad_dtype=dtype).task().grad for numel in (1, 256, 4097, 100_003)]
    grads.append(torch.randn(70_000).to(dtype)[3:])
    for some in (grads, [grad.nan_to_num(1.0, 2.0, 3.0) for grad in grads]):
        sums, their_sums = exact_zero(), exact_zero(device(place))
        adam.NativeAdam().add_square_sums(some, sums)
        backend_on(place).add_square_sums([grad.to(device(place)) for grad in some], their_sums)
        assert exact(sums) == exact(their_sums)
