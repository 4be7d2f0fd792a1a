"""The list of waits is complete, and those that no schedule can miss are needed."""

from collections.abc import Callable

import pytest

from tests.engine.far_memory.units import CHECKS
from tests.engine.far_memory.wait_sites import sites
from tests.engine.far_memory.waits import REASONS


def test_every_wait_of_the_engine_is_listed() -> None:
    """A new wait is listed once `mutate_waits` has shown that it is needed, or with its reason."""
    assert [site.key for site in sites()] == list(REASONS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_order(check: Callable[[], None]) -> None:
    check()
