"""One warm server for all trials of this package, and a process group of one rank for what needs no trial."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.worker.conftest import run_trial, runner

__all__ = ["run_trial", "runner"]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
