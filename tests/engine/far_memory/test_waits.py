"""The list of waits is complete, and those that no schedule can miss are needed."""

from collections.abc import Callable

import pytest

from tests.engine.far_memory.mutate_waits import page_rows
from tests.engine.far_memory.units import CHECKS
from tests.engine.far_memory.wait_sites import sites
from tests.engine.far_memory.waits import REASONS


def test_every_wait_of_the_engine_has_a_verdict() -> None:
    """A new wait gets one from `mutate_waits`, which shows that it is needed, or has its reason."""
    keys = [site.key for site in sites()]
    assert keys == list(page_rows())
    assert set(REASONS) <= set(keys)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_order(check: Callable[[], None]) -> None:
    check()
