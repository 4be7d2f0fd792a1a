"""A folder with a user's module."""

import sys
from pathlib import Path

import pytest

from tests.workloads.mine import MODULE


@pytest.fixture
def base_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend("")  # restores sys.path afterwards
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path
