"""TensorBoard's tracker keeps the protocol of trackers."""

from pathlib import Path

import pytest

from zbench.testing.reporting import TrackerSuite

pytest.importorskip("tensorboard")


class TestTensorboard(TrackerSuite):
    name = "tensorboard"

    def logged(self, directory: Path) -> str:
        files = [path for path in directory.rglob("*") if path.is_file()]
        return "\n".join(f"{path}\n{path.read_bytes().decode(errors='replace')}" for path in files)
