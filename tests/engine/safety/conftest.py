"""An engine of each row, on the `Net` of the test's module, and its twin in plain PyTorch."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.lattice import row_id
from tests.engine.safety.plainly import STAGES, Plain, build
from zbench.engine import Engine


@pytest.fixture(params=STAGES, ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    """Return a specification."""
    return request.param


@pytest.fixture
def engine(row: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return an engine of the row, with more keys where a test gives them as its parameter."""
    engine = build(request.module.Net(), row, **getattr(request, "param", {}))
    yield engine
    engine.close()


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> Plain:
    """Return the engine's twin."""
    return Plain(request.module.Net())
