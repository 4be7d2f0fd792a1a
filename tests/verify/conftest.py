"""One thread, of float64 runs too: the suite's processes share two cores, and waiting OpenMP threads cost
more than they give.
"""

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        yield
    torch.set_num_threads(before)
