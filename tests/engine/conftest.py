"""One thread for each test of the engine; every instruction set."""

from collections.abc import Iterator

import pytest
import torch

from zbench import _native


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute references on one thread, as the ranks do: more threads may sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=_native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on each instruction set; the best one is in use again afterwards."""
    _native.force_isa(request.param)
    yield request.param
    _native.force_isa("")
