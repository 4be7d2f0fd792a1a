"""What surrounds the kernels: instruction sets by name, fake tensors, CUDA where there is none, sums."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.engine.adam.cases import FLOATS, Case, results
from zbench import _native
from zbench.engine.adam import (
    CpuAdam,
    CudaAdam,
    Hyper,
    NativeAdam,
    ReferenceAdam,
    add_cast_,
    cuda_unavailable_reason,
    sum_in_rank_order,
)

HYPER = Hyper(1e-3, 0.9, 0.999, 1e-8, 0.01)


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"expected one of scalar.*got 'mmx'"):
        _native.force_isa("mmx")


def test_the_environment_forces_an_instruction_set() -> None:
    code = "import zbench._native as n; print(n.isa())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ZBENCH_ISA": "scalar"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "scalar"


def test_fake_tensors_pass_through_every_call() -> None:
    with FakeTensorMode():
        task = Case(64, 0, HYPER).task()
        NativeAdam().update([task])
        NativeAdam().chunk_square_sums([task.grad], [torch.zeros(1, dtype=torch.float64)])
        sum_in_rank_order(torch.zeros(64), [torch.zeros(64)])
        add_cast_(torch.zeros(64), torch.zeros(64))
        parameter = torch.nn.Parameter(torch.zeros(64))
        parameter.grad = torch.zeros(64)
        CpuAdam([parameter]).step()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_cuda_says_why() -> None:
    assert cuda_unavailable_reason()
    with pytest.raises(RuntimeError, match="CudaAdam"):
        CudaAdam()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("moments", FLOATS[:2])
@pytest.mark.parametrize("grads", FLOATS)
def test_cuda_returns_the_cpus_bits(grads: torch.dtype, moments: torch.dtype) -> None:
    def on_cuda(case: Case) -> list[torch.Tensor]:
        task = case.task()
        names = ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        for name in names:
            tensor = getattr(task.slot, name)
            setattr(task.slot, name, None if tensor is None else tensor.cuda())
        task.grad, task.param_out = (
            task.grad.cuda(),
            None if task.param_out is None else task.param_out.cuda(),
        )
        CudaAdam().update([task], grad_scale=0.37)
        return [tensor.cpu() for tensor in results(task)]

    for seed, numel in enumerate((1, 255, 4096, 100_003)):
        for rounding in (None, 9):
            case = Case(numel, seed, HYPER, 4, grads, moments, grads, seed % 2 == 0, rounding_seed=rounding)
            task = case.task()
            NativeAdam().update([task], grad_scale=0.37)
            for theirs, ours in zip(on_cuda(case), results(task), strict=True):
                assert torch.equal(theirs, ours)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("numel", [0, 1, 255, 5000, 40_001])
def test_sum_in_rank_order(isa: str, numel: int, accumulate: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(numel)
    parts = [torch.randn(numel, generator=generator).to(dtype) for _ in range(3)]
    out = torch.randn(numel, generator=generator)
    expected = (parts[0].float() + parts[1].float()) + parts[2].float()
    expected = out + expected if accumulate else expected
    squares, wanted = (torch.zeros(-(-numel // 256), dtype=torch.float64) for _ in range(2))
    sum_in_rank_order(out, parts, accumulate=accumulate, squares=squares, threads=2)
    ReferenceAdam().chunk_square_sums([expected], [wanted])
    assert torch.equal(out, expected)
    assert torch.equal(squares, wanted)


@pytest.mark.parametrize("into", FLOATS)
@pytest.mark.parametrize("grads", FLOATS)
def test_add_cast_rounds_once(isa: str, into: torch.dtype, grads: torch.dtype) -> None:
    out, grad = torch.randn(1003).to(into), torch.randn(1003).to(grads)
    expected = (out.float() + grad.float()).to(into)
    add_cast_(out, grad)
    assert torch.equal(out, expected)


def test_shifted_overlap_is_refused_and_exact_overlap_is_not() -> None:
    memory = torch.ones(100)
    with pytest.raises(ValueError, match=r"parts\[0\]: overlaps out"):
        sum_in_rank_order(memory[:90], [memory[10:]])
    sum_in_rank_order(memory, [memory, memory])
    assert torch.equal(memory, torch.full((100,), 2.0))
