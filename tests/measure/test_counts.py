"""One more copy, allocation or operator in a step is one more in its counts, whatever the machine does."""

import ctypes
import errno
import json
import struct
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from zbench.measure.counts import StepCounts, count_operators, instruction_counter, instruction_problem

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def step(extra: int = 0) -> torch.Tensor:
    x = torch.ones(8, 8)
    for _ in range(extra):
        x = x.clone()
    return x @ x


def test_operators_and_flops_of_a_step() -> None:
    plain, more = (count_operators(lambda extra=extra: step(extra), CPU) for extra in (0, 1))
    assert more["operators"] == plain["operators"] + 1
    assert plain["flops"] == more["flops"] == 2 * 8 * 8 * 8
    dtypes = []
    count_operators(lambda: dtypes.append(torch.ones(2).sum(dtype=torch.float64).dtype), CPU)
    assert dtypes == [torch.float64], "a counted step computes what it would"


COUNTED = """
import zbench.measure.shim  # before torch
import torch
from tests.measure.test_counts import CPU, step
from zbench.measure.counts import StepCounts
found = []
for extra, others in ((0, (3, 0, 5)), (1, (3, 0, 5)), (0, (0, 0, 0))):
    counts = StepCounts(CPU)
    for also in others:
        counts.begin()
        step(extra + also)
        counts.end()
    found.append(counts.smallest.get("allocations"))
print(found)
"""


def test_the_smallest_number_of_allocations_counts() -> None:
    command = [sys.executable, "-c", COUNTED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    plain, more, alone = json.loads(done.stdout)
    assert more == plain + 1
    assert plain == alone, "longer steps do not count"


def test_instructions_are_counted_where_the_kernel_lets_them_be_read() -> None:
    read = instruction_counter()
    assert (read is None) == (instruction_problem() is not None)
    if read is None:
        assert "instructions" not in StepCounts(CPU).smallest
        return
    before = read()
    step(100)
    assert read() > before


def test_instructions_of_user_code_and_its_threads_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    library = SimpleNamespace(syscall=lambda call, attributes, *where: asked.append(bytes(attributes)) or -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EACCES)
    assert instruction_counter() is None
    assert "set it to 2 or less" in (instruction_problem() or "")
    inherited_without_kernel_and_hypervisor = 0b110_0010
    words = [0, 128, 1, 0, *[0] * 6, inherited_without_kernel_and_hypervisor, *[0] * 21]
    assert asked == [struct.pack("32I", *words)] * 2


def test_a_steps_instructions_are_the_kernels_count_after_less_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(struct.pack("<4Q", 1000, 1700, 5000, 5300))  # each read is one number of 64 bits
    with counter.open("rb") as file:
        library = SimpleNamespace(syscall=lambda *_: file.fileno())
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
        counts = StepCounts(CPU)
        for _ in range(2):
            counts.begin()
            counts.end()
    assert counts.smallest["instructions"] == 300


def test_on_cuda_its_launches_and_its_allocators_allocations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    calls = {"cudaLaunchKernel": 3, "cuLaunchKernelEx": 2, "cudaMemcpyAsync": 7}
    events = [SimpleNamespace(key=key, count=count) for key, count in calls.items()]
    profiled = SimpleNamespace(key_averages=lambda: events)
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: nullcontext(profiled))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert count_operators(step, cuda) == count_operators(step, CPU) | {"kernel_launches": 5}
    allocated = iter([10, 14])
    stats = lambda device: {"allocation.all.allocated": next(allocated)} if device == cuda else {}  # noqa: E731
    monkeypatch.setattr(torch.cuda, "memory_stats", stats)
    counts = StepCounts(cuda)
    counts.begin()
    counts.end()
    assert counts.smallest["allocations"] == 4
