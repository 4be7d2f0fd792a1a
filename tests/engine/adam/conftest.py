"""Every instruction set of this processor, by forcing it."""

from collections.abc import Iterator

import pytest

from zbench import _native


@pytest.fixture(params=_native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on each instruction set; the best one is in use again afterwards."""
    _native.force_isa(request.param)
    yield request.param
    _native.force_isa("")
