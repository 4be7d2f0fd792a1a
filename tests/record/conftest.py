"""Records as a sweep would write them."""

from collections.abc import Callable

import pytest

from tests import making
from zbench.record.record import Record


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Return `making.make_record`."""
    return making.make_record
