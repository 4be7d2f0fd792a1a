"""Every test starts without compiled code: dynamo keeps it by code object, which the tests share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
