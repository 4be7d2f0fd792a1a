"""What a look at one cache line of 4 KiB, and the first of every parameter, sees."""

import pytest
import torch

from zbench.engine.parameters.edits import Contents
from zbench.engine.partition import Extent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_edit_of_any_parameter_or_page_is_seen(dtype: torch.dtype) -> None:
    page = 4096 // dtype.itemsize
    extents = [Extent(0, 7), Extent(256, 24), Extent(512, 5 * page), Extent(512 + 6 * page, 256)]
    buffer = torch.arange(512 + 7 * page).to(dtype)
    contents = Contents(extents, buffer)
    assert not contents.differ()
    for at in (0, 256, 512, 512 + page, 512 + 4 * page, 512 + 6 * page):
        buffer[at] += 64
        assert contents.differ(), at
        contents.note(buffer)
        assert not contents.differ()
    buffer[:7].fill_(1)
    buffer[256:263] = 2
    contents.note(buffer)
    buffer[:7], buffer[256:263] = 2, 1
    assert contents.differ()
