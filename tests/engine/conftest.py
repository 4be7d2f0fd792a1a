"""One pool of ranks for all engine tests."""

from collections.abc import Iterator

import pytest
import torch

from tests.engine.ranks import RankPool


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute references on one thread, as the ranks do: more threads may sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Four processes with gloo groups of 1, 2, 3 and 4 ranks."""
    pool = RankPool(4)
    yield pool
    pool.close()
