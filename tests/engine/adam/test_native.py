"""What surrounds the kernels: instruction sets by name, fake tensors, sums."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.engine.adam.cases import FLOATS, Case
from zbench import _native
from zbench.engine.adam import (
    CpuAdam,
    Hyper,
    NativeAdam,
    ReferenceAdam,
    add_cast_,
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
        optimizer = CpuAdam([parameter])
        optimizer.step()
        assert optimizer.state[parameter]["step"] == 1
        assert isinstance(task.slot.param, FakeTensor)


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
