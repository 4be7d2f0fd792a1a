"""An engine of each row, on the usual `Net` or that of the test's module, and its twin in plain PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import nn

from tests.engine.lattice import row_id
from tests.engine.safety.plainly import STAGES, Net, Plain, build
from zbench.engine import Engine


@pytest.fixture(params=STAGES, ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    """Return a specification."""
    return request.param


@pytest.fixture
def twins(row: dict[str, Any]) -> Iterator[Callable[..., tuple[Engine, Plain]]]:
    """Return a function: makes a model -> an engine of the row, with more keys, and its twin."""
    engines: list[Engine] = []

    def make(net: Callable[[], nn.Module], **keys: Any) -> tuple[Engine, Plain]:
        engines.append(build(net(), row, **keys))
        return engines[-1], Plain(net())

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(row: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return an engine of the row, with more keys where a test gives them as its parameter."""
    engine = build(_net_of(request), row, **getattr(request, "param", {}))
    yield engine
    engine.close()


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> Plain:
    """Return the engine's twin."""
    return Plain(_net_of(request))


def _net_of(request: pytest.FixtureRequest) -> nn.Module:
    net: nn.Module = getattr(request.module, "Net", Net)()
    return net
