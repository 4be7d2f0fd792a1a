"""Runs in the pool's ranks: where the kernel may run the optimizer's threads."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from tests.engine.speculative.running import layers, threads
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def pinned_threads(group: dist.ProcessGroup) -> list[int]:
    """Return how many threads an engine started that may not run on all processors of this process.

    The process leaves all processors but one to the optimizer, as a test of placement needs.
    """
    assert torch.get_num_threads() == 1
    before = threads()
    spec = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
    engine = build_engine(layers(), EngineSpec.model_validate(spec | {"optimizer_threads": 1}), group)
    started = [int(thread) for thread in threads() - before]
    allowed = os.sched_getaffinity(0)
    pinned = [len(os.sched_getaffinity(thread)) for thread in started if thread_exists(thread)]
    engine.close()
    return [count for count in pinned if count < len(allowed)]


def thread_exists(thread: int) -> bool:
    """Say whether a thread of this process is still there."""
    return Path(f"/proc/self/task/{thread}").exists()
