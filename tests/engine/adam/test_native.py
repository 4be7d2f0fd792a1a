"""What surrounds the kernels: instruction sets by name, fake tensors."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from zbench import _native
from zbench.engine.adam import CpuAdam, Hyper, NativeAdam
from zbench.engine.adam.exact_sum import exact_zero
from zbench.engine.transport.sums import accumulate, sum_in_rank_order
from zbench.testing.adam import Case

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


def test_threads_that_cannot_start_are_an_error() -> None:
    code = """
import os, resource, zbench._native as n
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
before = len(os.listdir("/proc/self/task"))
try:
    n.Executor(4096, [])
except RuntimeError as error:
    print(error, len(os.listdir("/proc/self/task")) - before, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message, left = done.stdout.strip().split("|")
    assert "can't start new thread" in message
    assert left == "0"


def test_fake_tensors_pass_through_every_call() -> None:
    with FakeTensorMode():
        task = Case(64, 0, HYPER).task()
        NativeAdam().update([task])
        NativeAdam().add_square_sums([task.grad], exact_zero())
        sum_in_rank_order(torch.zeros(64), [torch.zeros(64)])
        accumulate(torch.zeros(64), torch.zeros(64).half())
        parameter = torch.nn.Parameter(torch.zeros(64))
        parameter.grad = torch.zeros(64)
        optimizer = CpuAdam([parameter])
        optimizer.step()
        assert optimizer.state[parameter]["step"] == 1
        assert isinstance(task.slot.param, FakeTensor)
