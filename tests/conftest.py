"""Settings of the whole suite."""

import gc
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("suite", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("suite")
gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """Let collections of garbage skip what was imported: with torch, each would take 0.2 s."""
    gc.freeze()
    gc.enable()


LONGEST = ("github", "engine/compiled", "cli", "engine", "launch", "worker")
"""Folders of the files that take longest, which begin first: else one worker ends long after the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files of `LONGEST` before all others."""
    here = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parent.as_posix()
        return next(
            (n for n, name in enumerate(LONGEST) if f"{folder}/".startswith(f"{name}/")), len(LONGEST)
        )

    items.sort(key=turn)


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width that pytest-xdist gives its workers: what is printed depends on it."""
    monkeypatch.delenv("COLUMNS", raising=False)
