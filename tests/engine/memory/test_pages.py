"""Large buffers are marked for huge pages, small ones are left alone."""

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch

from zbench.engine.memory.buffers import prefer_huge_pages

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not HUGE.exists(), reason="the kernel has no transparent huge pages"
)


def is_marked(address: int) -> bool:
    """Say whether the mapping around an address is marked for huge pages (`hg` among its flags)."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif is_inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    return False


def mapped(nbytes: int) -> torch.Tensor:
    """Return a buffer in a mapping of its own; the allocator may reuse memory that was marked before."""
    return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)


def test_the_whole_pages_of_a_large_buffer_are_marked_and_those_of_a_small_one_are_not() -> None:
    large, small = mapped(64 << 20), mapped(3 << 20)
    for buffer in (large, small):
        prefer_huge_pages(buffer)
    start = large.data_ptr()
    assert all(is_marked(start + at) for at in (8192, 32 << 20, (64 << 20) - 8192))
    assert not is_marked(small.data_ptr() + 8192)
