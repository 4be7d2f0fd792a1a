"""Every test starts without compiled code: dynamo keeps it by code object, which the tests share."""

from collections.abc import Iterator

import pytest
import torch

from tests.engine.nursery import without_guard_timing


@pytest.fixture(autouse=True)
def _forget_compiled_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_guard_timing(monkeypatch)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
