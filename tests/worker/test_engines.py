"""What an engine factory returns is checked before it is used."""

from pathlib import Path

import pytest
from torch import nn

from tests.worker.failing_engines import Frozen
from zbench.engine.assembly.build import Instruments
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec
from zbench.worker.engines import build

FAILING = "tests.worker.failing_engines:"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("returns_nothing", "returned NoneType, which has no backward, step"),
        ("lacks_methods", "returned Linear, which has no backward, step"),
    ],
)
def test_what_is_no_engine_is_refused_with_the_missing_methods(factory: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build(FAILING + factory, nn.Linear(2, 2), EngineSpec(), ROOT, Instruments())


def test_a_model_without_a_trainable_parameter_is_refused() -> None:
    with pytest.raises(UsageError, match="no trainable parameter"):
        build("builtin", Frozen(), EngineSpec(), ROOT, Instruments())
