"""One thread for the comparison with reality, and a process that simulates."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.engine.conftest import one_thread
from tests.estimate.real import Simulate, simulated_rank
from zbench.testing.ranks import fork_server

__all__ = ["one_thread"]


@pytest.fixture(scope="package")
def simulate() -> Iterator[Simulate]:
    """Return a function that simulates a rank of a trial, in a process that has the compiler."""
    with ProcessPoolExecutor(1, mp_context=fork_server()) as process:
        yield lambda trial, rank=0: process.submit(simulated_rank, trial, rank).result()
