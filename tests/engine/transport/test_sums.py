"""Sums on every instruction set, and of devices without a native kernel, have the same bits."""

import pytest
import torch

from tests.engine.adam import host_kernels
from zbench.engine.transport.sums import (
    add_in_rank_order,
    follow_one_another,
    sum_in_rank_order,
)
from zbench.testing.adam import FLOATS


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("numel", [0, 255, 40_001])
def test_parts_are_added_in_rank_order(numel: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(numel)
    parts = [torch.randn(numel, generator=generator).to(dtype) for _ in range(4)]
    by_kernel, by_torch = torch.full((numel,), 7.0), torch.full((numel,), 7.0)
    sum_in_rank_order(by_kernel, parts)
    add_in_rank_order(by_torch, parts)
    expected = ((parts[0].float() + parts[1].float()) + parts[2].float()) + parts[3].float()
    assert torch.equal(by_kernel, expected)
    assert torch.equal(by_torch, expected)
    if dtype == torch.float32 and numel > 255:  # sums of few narrow values are exact in any order
        assert not torch.equal(by_kernel, sum(reversed(parts)))


@pytest.mark.skipif(host_kernels.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("world", [1, 3, 33])
@pytest.mark.parametrize("numel", [4, 5 * 1024 + 256])
def test_a_devices_kernel_adds_in_rank_order_in_one_pass(numel: int, world: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(numel + world)
    parts = torch.randn(world, numel, generator=generator).to(dtype)
    expected = torch.empty(numel)
    out = torch.full((numel + 4,), 7.0)
    add_in_rank_order(expected, list(parts))
    host_kernels.sum_parts(out[:numel], parts)
    assert torch.equal(out[:numel], expected)
    assert out[numel:].tolist() == [7.0] * 4, "nothing is written beyond the sums"


@pytest.mark.parametrize(
    ("starts", "numel", "at", "reads"),
    [
        ([64, 72, 80], 8, 16, True),
        ([64, 80], 8, 0, False),  # a gap
        ([72, 64], 8, 0, False),  # another order
        ([64, 70], 6, 0, False),  # no whole number of fours
        ([64, 72], 8, 2, False),  # the sums, and then the parts, begin within sixteen bytes
        ([65, 73], 8, 0, False),
    ],
)
def test_a_device_adds_readable_parts_in_one_pass(
    starts: list[int], numel: int, at: int, reads: bool
) -> None:
    for dtype in FLOATS:
        memory, sums = torch.zeros(128, dtype=dtype), torch.zeros(32)
        assert memory.data_ptr() % 16 == sums.data_ptr() % 16 == 0
        parts = [memory[start : start + numel] for start in starts]
        assert follow_one_another(sums[at : at + numel], parts) is reads
