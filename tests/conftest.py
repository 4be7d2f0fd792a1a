"""Settings of the whole suite."""

import gc

import pytest
from hypothesis import settings

settings.register_profile("suite", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("suite")
gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """Let collections of garbage skip what was imported: with torch, each would take 0.2 s."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width that pytest-xdist gives its workers: what is printed depends on it."""
    monkeypatch.delenv("COLUMNS", raising=False)
